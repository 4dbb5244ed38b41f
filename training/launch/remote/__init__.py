"""What the launchers for other machines share: the follower, the log, the storage, the pool, the Ray job."""
