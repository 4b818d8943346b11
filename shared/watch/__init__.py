"""What a running stack tells about itself on its bus, by itself or when it is asked."""
