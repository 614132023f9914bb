package store

// Alerts reads and writes the records of alerts (alerts/): the alerts of each shard, those about the cluster, what was sent
// to receivers, and silences. Owners write the alerts of their shards, the leader writes those about the cluster and what it has sent, and
// the API acknowledges alerts and writes silences. Each of them compares the record that it replaces.
type Alerts struct{ *conn }
