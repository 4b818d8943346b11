"""The capacity simulator: the same scheduling core and KV accounting as the live system, in virtual time."""
