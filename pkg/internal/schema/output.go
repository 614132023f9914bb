package schema

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/task"
)

// refineOutput adds the allowed values of the fields of a task's output.
func refineOutput(o map[string]*huma.Schema) {
	setChoices(o["streams"], task.StreamsMerged, task.StreamsMerged, task.StreamsApart)
	o["keep"].Pattern = durationPattern
	o["mask"].Default, o["mask"].Nullable = true, false
	o["compress"].Default, o["compress"].Nullable = true, false
}
