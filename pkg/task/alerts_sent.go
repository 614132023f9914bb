package task

// AlertsSent is what a receiver of alerts has been told. The difference between it and the alerts is the next message (see
// package alert).
type AlertsSent struct {
	UID string `json:"uid"` // of the receiver's task
	// Delivered holds the alerts that the receiver believes to be open, and Uncertain those about which it may
	// believe either, because a message about them failed.
	Delivered AlertKeys `json:"delivered,omitempty"`
	Uncertain AlertKeys `json:"uncertain,omitempty"`
	// Horizon and HorizonAt are a revision and a time: open alerts with an ID up to Horizon that have last opened by HorizonAt
	// count as delivered unless they are in Uncertain. Horizon is set when Delivered is full; 0: none.
	Horizon   int64 `json:"horizon,omitempty"`
	HorizonAt Time  `json:"horizon_at,omitzero"`

	Group string `json:"group,omitempty"` // the receiver's group with which all this was sent

	Sending *AlertMessage  `json:"sending,omitempty"` // the message whose runs have not ended
	Past    []AlertMessage `json:"past,omitempty"`    // the last messages that have ended, the newest first, each with only the alerts that it named

	Recent        int  `json:"recent,omitempty"`          // how many messages were written in a row without a quiet time
	FailedInARow  int  `json:"failed_in_a_row,omitempty"` // how many messages in a row failed; above 0, the next one is plain
	FailingSince  Time `json:"failing_since,omitzero"`    // when the first of these was written
	LastDelivered Time `json:"last_delivered,omitzero"`   // when a message was last delivered
	RepeatedAt    Time `json:"repeated_at,omitzero"`      // when open alerts were last sent again, or began to be
	// RepeatedTo is the key up to which the alerts of a group were sent again since RepeatedAt.
	RepeatedTo uint64 `json:"repeated_to,omitempty"`

	Receiver string `json:"-"` // NAMESPACE/NAME, in the key
	// Mod is the mod revision of the record.
	Mod int64 `json:"-"`
}

// AlertMessage is a message to a receiver: one run of it, with the difference that it told. A message with several runs has one
// for each key: first for those of Closed, then for those of Opened, which also has those that are sent again.
type AlertMessage struct {
	Runs   []string  `json:"runs"`
	Opened AlertKeys `json:"opened,omitempty"`
	Closed AlertKeys `json:"closed,omitempty"`
	Named  AlertKeys `json:"named,omitempty"` // the alerts that its text names, at most 20, until it has ended
	// Horizon and HorizonAt are those of AlertsSent for the alerts that were more than Opened may contain, and were only counted.
	Horizon   int64 `json:"horizon,omitempty"`
	HorizonAt Time  `json:"horizon_at,omitzero"`

	Plain    bool  `json:"plain,omitempty"`   // without texts of tasks
	Repeats  bool  `json:"repeats,omitempty"` // it also named what had been delivered before
	Revision int64 `json:"revision"`          // the revision at which this was the difference
	At       Time  `json:"at"`
	Failed   bool  `json:"failed,omitempty"` // of a message that has ended
}
