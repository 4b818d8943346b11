"""The wire: every bus message, every subject, every durable stream and bucket, and the codec."""
