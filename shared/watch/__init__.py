"""What a running stack tells about itself on its bus, added up for a screen. Nothing here sends anything."""
