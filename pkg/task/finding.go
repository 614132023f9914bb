package task

// The severities of a finding.
const (
	Grave = "error"   // a guarantee is broken, or tasks do not run as they should
	Mild  = "warning" // nothing is broken yet
)

// Finding is a problem in a cluster that an audit has found.
type Finding struct {
	Kind     string   `json:"kind" doc:"The kind of finding, in one word for programs."`
	Group    string   `json:"group" doc:"shards, tasks, runs, nodes or etcd."`
	Severity string   `json:"severity" doc:"error: a guarantee is broken, or tasks do not run as they should. warning: nothing is broken yet."`
	Keys     []string `json:"keys" doc:"The keys concerned, at most ten; the first is what was found, or a prefix that ends in /."`
	Count    int64    `json:"count" doc:"How many records are concerned."`
	Revision int64    `json:"revision,omitempty" doc:"The mod revision of the first key; absent if the key is."`
	Message  string   `json:"message" doc:"What was found."`
	Why      string   `json:"why" doc:"Why it matters."`
	Do       string   `json:"do" doc:"What to do about it."`
	Repair   string   `json:"repair,omitempty" doc:"What a repair would do; absent if you have to repair it yourself."`
}

// Audit is the result of an audit.
type Audit struct {
	Findings []Finding `json:"findings"`
	Notes    []string  `json:"notes" doc:"What the audit could not cover."`
	Keys     int64     `json:"keys" doc:"How many records were read."`
	Revision int64     `json:"revision" doc:"The etcd revision at which the audit read."`
	At       Time      `json:"at" doc:"When that was, by the clock of the node that did it."`
	Node     string    `json:"node,omitempty" doc:"The node that did it."`
}

// AuditProgress is the progress of an audit.
type AuditProgress struct {
	Stage string `json:"stage" doc:"What it reads, or waits for."`
	Keys  int64  `json:"keys" doc:"How many records it has read."`
}

// The results of a repair.
const (
	Repaired      = "repaired"
	NotAsFound    = "changed"        // the finding no longer applies; nothing was written
	NotRepairable = "not_repairable" // a person must repair it
	RepairFailed  = "failed"         // the outcome is unknown; it is safe to try again
)

// RepairRequest identifies a finding to repair, with the values that the audit reported.
type RepairRequest struct {
	Kind     string `json:"kind"`
	Key      string `json:"key" doc:"The finding's first key."`
	Revision int64  `json:"revision" doc:"The finding's revision; 0 if it has none."`
}

// RepairResult is the result of a repair.
type RepairResult struct {
	RepairRequest
	Result  string `json:"result" doc:"repaired; changed: the finding no longer applies and nothing was written; not_repairable: you have to repair it yourself; failed: the result is unknown, and you can safely try again."`
	Deleted int64  `json:"deleted" doc:"The number of deleted keys."`
	Message string `json:"message,omitempty"`
}
