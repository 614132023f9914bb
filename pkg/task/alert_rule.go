package task

// AlertRule says what is expected of those tasks of a namespace that have no alerts block of their own.
type AlertRule struct {
	Name        string `json:"name" record:"-" doc:"The name of the rule."`
	Namespace   string `json:"namespace,omitempty" record:"-" doc:"The namespace of the rule."`
	Description string `json:"description,omitempty" maxLength:"4096" doc:"What it is for, as text."`
	Selector    string `json:"selector,omitempty" doc:"The labels of the tasks, such as team=data." absent:"all tasks of the namespace" maxLength:"1024"`
	Alerts      Alerts `json:"alerts" doc:"What the rule expects of its tasks, and whom it notifies."`
	CreatedAt   Time   `json:"created_at,omitzero" doc:"When it was created."`
	CreatedBy   *Actor `json:"created_by,omitempty" doc:"Who created it."`
	UpdatedAt   Time   `json:"updated_at,omitzero" doc:"When it was last changed."`
	UpdatedBy   *Actor `json:"updated_by,omitempty" doc:"Who changed it last."`
	// Revision is the mod revision of the record.
	Revision int64 `json:"revision,omitempty" record:"-" doc:"The etcd revision of its last change."`
}

// MaxAlertRules is how many rules a namespace may have.
const MaxAlertRules = 100

// ruleProbe is the name of a task with the block of a rule, whose checks are those of the rule.
const ruleProbe = "carillon-alert-rule"

// Validate checks a rule, except for its deadlines (package alert). A field that some tasks cannot have, such as more failures in a row
// than they keep, has no effect on them.
func (r *AlertRule) Validate() error {
	if err := CheckName("name", r.Name); err != nil {
		return err
	}
	if err := CheckName("namespace", r.Namespace); err != nil {
		return err
	}
	if err := checkText("description", r.Description, MaxDescription); err != nil {
		return err
	}
	if _, err := ParseSelector(r.Selector); err != nil {
		return Under("selector", err)
	}
	if r.Alerts.ExpectsNothing() {
		return Invalid(CodeBadValue, "alerts", "expects nothing, so the rule has no effect; delete it, or set failures, success_within or another expectation")
	}

	s := Defaults()
	s.Name, s.Namespace, s.Schedule, s.Action = ruleProbe, r.Namespace, Schedules{"@hourly"}, Action{Noop: &Noop{}}
	s.History.Keep, s.Alerts = MaxAlertKept, &r.Alerts

	return s.Validate()
}
