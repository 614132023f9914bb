// Package wait is the flag --wait of commands that start runs, and what it does: it waits for the runs and prints their output.
package wait

import (
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/task"
)

// Flag is the value of a flag --wait, which may have a limit: --wait=10m.
type Flag struct {
	On    bool
	Limit time.Duration // 0: none
}

// noLimit is the value of --wait without one. Together with the type bool, help shows it as --wait[=DURATION].
const noLimit = "DURATION"

// Bind declares --wait. what ends the sentence that describes it.
func (f *Flag) Bind(flags *pflag.FlagSet, what string) {
	flags.Var(f, "wait", what+"; --wait=10m waits at most that long, then exits with 5")
	flags.Lookup("wait").NoOptDefVal = noLimit
}

// Check refuses --wait 10m. A flag whose value may be missing takes it only after an equals sign, so the duration would be the
// name of a task. words are those of the command line without the flags.
func (f *Flag) Check(words []string) error {
	if !f.On || f.Limit > 0 || len(words) == 0 {
		return nil
	}

	last := words[len(words)-1]
	if d, err := task.ParseDuration("", last); err == nil && d > 0 {
		return failure.Usage("--wait %s: write --wait=%s", last, last)
	}

	return nil
}

// String implements pflag.Value.
func (f *Flag) String() string {
	if f.Limit > 0 {
		return task.Duration(f.Limit).String()
	}
	return strconv.FormatBool(f.On)
}

// Type implements pflag.Value.
func (f *Flag) Type() string { return "bool" }

// Set implements pflag.Value.
func (f *Flag) Set(text string) error {
	if text == noLimit {
		*f = Flag{On: true}
		return nil
	}
	if on, err := strconv.ParseBool(text); err == nil {
		*f = Flag{On: on}
		return nil
	}

	d, err := task.ParseDuration("", text)
	if err == nil && d <= 0 {
		err = task.Invalid(task.CodeOutOfRange, "", "must be more than 0")
	}
	if err != nil {
		return err
	}
	*f = Flag{On: true, Limit: d.Std()}

	return nil
}
