package task

import (
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/task"
)

// Wait is the value of a flag --wait, which may have a limit: --wait=10m.
type Wait struct {
	On    bool
	Limit time.Duration // 0: none
}

// BindFlag declares --wait. what ends the sentence that describes it.
func (w *Wait) BindFlag(flags *pflag.FlagSet, what string) {
	flags.Var(w, "wait", what+"; --wait=10m waits at most this `DURATION`, then exits with 5")
	flags.Lookup("wait").NoOptDefVal = "true"
}

// Check refuses --wait 10m. A flag whose value may be missing takes it only after an equals sign, so the duration would be the
// name of a task. words are those of the command line without the flags.
func (w *Wait) Check(words []string) error {
	if !w.On || w.Limit > 0 || len(words) == 0 {
		return nil
	}

	last := words[len(words)-1]
	if d, err := task.ParseDuration("", last); err == nil && d > 0 {
		return failure.Usage("--wait %s: write --wait=%s", last, last)
	}

	return nil
}

// String implements pflag.Value.
func (w *Wait) String() string {
	if w.Limit > 0 {
		return task.Duration(w.Limit).String()
	}
	return strconv.FormatBool(w.On)
}

// Type implements pflag.Value.
func (w *Wait) Type() string { return "wait" }

// Set implements pflag.Value.
func (w *Wait) Set(text string) error {
	if on, err := strconv.ParseBool(text); err == nil {
		*w = Wait{On: on}
		return nil
	}

	d, err := task.ParseDuration("", text)
	if err == nil && d <= 0 {
		err = task.Invalid(task.CodeOutOfRange, "", "must be more than 0")
	}
	if err != nil {
		return err
	}
	*w = Wait{On: true, Limit: d.Std()}

	return nil
}
