package task

// AlertStatus is an alert as people see it: how severe it is, whether it is silenced, and who was notified.
type AlertStatus struct {
	Alert
	Name      string          `json:"name" doc:"The name of the alert in its namespace, as commands take it: TASK:KIND, or cluster:CODE."`
	Severity  string          `json:"severity" doc:"The label severity of the task if it is critical, error, warning or info; otherwise error."`
	Silence   *AlertSilence   `json:"silence,omitempty" doc:"The silence that holds back messages about the alert; of several, the one that lasts longest."`
	Receivers []AlertReceiver `json:"receivers" doc:"What each receiver knows of the alert."`
}

// AlertReceiver is what a receiver knows of an alert, and whether it gets messages.
type AlertReceiver struct {
	Receiver string             `json:"receiver" doc:"NAMESPACE/NAME."`
	State    AlertReceiverState `json:"state,omitempty" doc:"notified; sending (a message is under way); failed (the last message failed and is sent again); waiting (no message was sent yet); settled (the alert is closed, and the receiver knows that or never knew of it). Absent without an alert."`
	Run      string             `json:"run,omitempty" doc:"The run of the receiver that sent the message, or sends it; absent if that is no longer on record."`
	At       Time               `json:"at,omitzero" doc:"When that message was written."`
	Blocked  *AlertBlock        `json:"blocked,omitempty" doc:"Why the receiver gets no messages now."`
}

// AlertReceiverState is what a receiver knows of an alert.
type AlertReceiverState string

// The states of receivers.
const (
	ReceiverNotified AlertReceiverState = "notified"
	ReceiverSending  AlertReceiverState = "sending"
	ReceiverFailed   AlertReceiverState = "failed"
	ReceiverWaiting  AlertReceiverState = "waiting"
	ReceiverSettled  AlertReceiverState = "settled"
)

// AlertBlock is why a receiver gets no messages.
type AlertBlock struct {
	Why    AlertBlockReason `json:"why" doc:"missing (there is no such task, or it is not a receiver), forbidden (it does not accept alerts of the namespace, or does not exist), paused or frozen."`
	By     *Actor           `json:"by,omitempty" doc:"Who paused or froze it."`
	Since  Time             `json:"since,omitzero" doc:"Since when."`
	Until  Time             `json:"until,omitzero" doc:"When the pause ends."`
	Reason string           `json:"reason,omitempty" doc:"Why."`
}

// AlertBlockReason is the kind of an AlertBlock.
type AlertBlockReason string

// The reasons for which receivers get no messages.
const (
	BlockMissing   AlertBlockReason = "missing"
	BlockForbidden AlertBlockReason = "forbidden"
	BlockPaused    AlertBlockReason = "paused"
	BlockFrozen    AlertBlockReason = "frozen"
)

// TaskAlerts is all about the alerts of one task.
type TaskAlerts struct {
	Items     []AlertStatus   `json:"items" doc:"The open alerts, and those that were closed in the last two hours."`
	Receivers []AlertReceiver `json:"receivers" doc:"The receivers that the task, or its rule, names now, and whether they get messages."`
	Silence   *AlertSilence   `json:"silence,omitempty" doc:"The silence that holds back messages about the task now."`
	Rule      *AlertRule      `json:"rule,omitempty" doc:"The rule that says what is expected of the task; absent if there is none, or if the task has alerts of its own."`
}
