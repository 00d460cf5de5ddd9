"""Sources of frames: pictures, recordings, cameras, and frames that a program pushes."""
