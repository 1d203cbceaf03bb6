"""What every table that passes between steps must look like, and how it is checked."""
