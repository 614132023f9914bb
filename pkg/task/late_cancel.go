package task

// LateCancel is the cancel of one attempt while etcd is full. The attempt's record cannot be changed then, so the node of
// the attempt is asked directly. It ends the attempt at once and keeps the cancel, and then the end, until etcd has
// space for the record of the end.
type LateCancel struct {
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	Run       string `json:"run"`
	Token     int64  `json:"token"`         // of the attempt: later attempts of the run are not cancelled by it
	By        string `json:"by"`            // who cancelled the run
	End       *Run   `json:"end,omitempty"` // how the attempt ended, once it has
}

// LateCancelled is the answer to a LateCancel.
type LateCancelled struct {
	State    State `json:"state" doc:"The state of the attempt when the request arrived. If it is final, the request has no effect."`
	Repeated bool  `json:"repeated,omitempty" doc:"The attempt had been cancelled in this way before."`
}
