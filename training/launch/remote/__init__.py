"""What launchers on other machines share."""
