"""The wire: every bus message, every subject, every durable stream and bucket, and the codec. What only offline work,
only profiling or only access is told by lies in a folder of its own."""
