package factory

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/task"
)

// flagSets returns the names of all flags of a command: its own and the global ones.
func flagSets(cmd *cobra.Command) [][]string {
	var own, global []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { own = append(own, f.Name) })
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { global = append(global, f.Name) })

	return [][]string{own, global}
}

// FlagError converts an error of the flag parser. For an unknown flag it suggests the one that was probably
// meant.
func FlagError(cmd *cobra.Command, err error) error {
	if f := badValue(err); f != nil {
		return f
	}

	f := &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: failure.CodeUsage, Message: err.Error(), Hint: "see " + cmd.CommandPath() + " --help"}}
	word, unknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !unknown {
		return f
	}

	var names []string
	for _, set := range flagSets(cmd) {
		names = append(names, set...)
	}

	slices.Sort(names)

	if near := task.Nearest(word, slices.Compact(names)); near != "" {
		f.Hint = "did you mean: --" + near
	}

	return f
}

// badValue explains an invalid value of a flag, with the same message as for other inputs. It returns nil for
// other errors.
func badValue(err error) *failure.Error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return nil
	}

	flag, value := bad.GetFlag(), bad.GetValue()
	e := failure.Usage("--%s %s: %s", flag.Name, task.Quote(value), bad.Unwrap())

	var field *task.Error
	switch kind := flag.Value.Type(); {
	case errors.As(bad.Unwrap(), &field):
		e.Message = "--" + flag.Name + ": " + field.Message
	case kind == "duration":
		if _, err := task.ParseDuration("--"+flag.Name, value); err != nil {
			e.Message = err.Error()
		}
	case kind == "int" || kind == "int64":
		e.Message = fmt.Sprintf("--%s: %s is not a whole number", flag.Name, task.Quote(value))
	case kind == "bool":
		e.Message = fmt.Sprintf("--%s=%s: use true or false", flag.Name, task.Quote(value))
	}

	return e
}
