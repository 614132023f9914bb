package task

import (
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// pauseUntil parses the end of a pause. A time without an offset is in the zone of the output, which chooseZone determines; it is
// called only then. A duration is passed on, because it counts by the clock of the server.
func pauseUntil(f *factory.Factory, text string, chooseZone func() error) (client.PauseRequest, error) {
	var request client.PauseRequest
	if text == "" {
		return request, nil
	}

	if d, err := task.ParseDuration("until", text); err == nil {
		if request.For = d; request.For < task.Duration(time.Second) || request.For > task.MaxTimeout {
			return request, failure.Usage("--until: %s must be between 1s and %s", task.Quote(text), task.MaxTimeout)
		}
		return request, nil
	}

	if request.Until.UnmarshalText([]byte(text)) == nil {
		return request, nil
	}

	if err := chooseZone(); err != nil {
		return request, err
	}

	var err error
	request.Until, err = f.ParseEnd("until", text, f.Zone(output.ReaderZone))

	return request, err
}
