package audit

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// progress counts the records that were read, and reports it about once a second.
type progress struct {
	report   func(task.AuditProgress) // nil: no reports
	stage    string
	records  int64     // read so far
	reported time.Time // when the last report was made
}

// beginStage begins a stage.
func (p *progress) beginStage(stage string) {
	p.stage = stage
	p.addRecords(0)
}

// beginAndReport begins a stage and reports it at once.
func (p *progress) beginAndReport(stage string) {
	p.reported = time.Time{}
	p.beginStage(stage)
}

// addRecords counts records.
func (p *progress) addRecords(records int) {
	p.records += int64(records)
	if p.report == nil || time.Since(p.reported) < time.Second {
		return
	}

	p.reported = time.Now()
	p.report(task.AuditProgress{Stage: p.stage, Keys: p.records})
}
