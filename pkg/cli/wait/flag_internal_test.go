package wait

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestFlag_MayHaveALimit(t *testing.T) {
	for arg, want := range map[string]Flag{
		"--wait": {On: true}, "--wait=true": {On: true}, "--wait=false": {}, "--wait=10m": {On: true, Limit: 10 * time.Minute},
	} {
		var f Flag
		flags := pflag.NewFlagSet("trigger", pflag.ContinueOnError)
		f.Bind(flags, "wait until the run has ended")

		if err := flags.Parse([]string{arg}); err != nil || f != want {
			t.Errorf("%s: %+v, %v, want %+v", arg, f, err, want)
		}
		if usage := flags.FlagUsages(); !strings.Contains(usage, "--wait[=DURATION] ") {
			t.Errorf("help shows %s", usage)
		}
	}
}
