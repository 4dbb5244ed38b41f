"""`--on ray-up`: Ray on VMs of AWS, GCP or Azure, or on existing hosts, started by Ray's cluster launcher."""
