package notifier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// warningsEvery is the interval at which the warnings about the cluster are read, and warningsTimeout the time limit of that. Warnings
	// that are older than warningsAge open and close nothing.
	warningsEvery   = 15 * time.Second
	warningsTimeout = 10 * time.Second
	warningsAge     = 45 * time.Second
	// namedWarnings is how many warnings of one kind the text of their alert contains, and warningBytes how much of each.
	namedWarnings = 3
	warningBytes  = 160
)

// warnings are the warnings about the cluster at one time.
type warnings struct {
	at       time.Time
	texts    map[string]string // by their code
	complete bool              // otherwise, others may be missing
}

// readWarnings reads the warnings about the cluster every warningsEvery until ctx ends. It does not delay passes, because members of
// etcd may take long to answer.
func (t *term) readWarnings(ctx context.Context) error {
	failing := false
	for {
		err := t.readWarningsOnce(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			t.log.Warn("could not read the warnings about the cluster; retrying", zap.Error(err))
		}
		failing = err != nil

		if !clock.Sleep(ctx, warningsEvery) {
			return ctx.Err()
		}
	}
}

func (t *term) readWarningsOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, warningsTimeout)
	defer cancel()

	list, complete, err := t.cfg.Warnings(ctx)
	if err == nil {
		t.warnings.Store(&warnings{at: t.cfg.Now(), texts: textsByCode(list), complete: complete})
	}

	return err
}

// textsByCode returns one text for all warnings with a code. It names a few of them, however many there are.
func textsByCode(list []task.Warning) map[string]string {
	byCode := map[string][]string{}
	for _, w := range list {
		byCode[w.Code] = append(byCode[w.Code], w.Text)
	}

	texts := map[string]string{}
	for code, all := range byCode {
		var named []string
		for _, text := range all[:min(len(all), namedWarnings)] {
			named = append(named, alert.Shorten(text, warningBytes))
		}
		texts[code] = strings.Join(named, "; ")
		if more := len(all) - len(named); more > 0 {
			texts[code] = fmt.Sprintf("%d warnings: %s; and %d more", len(all), texts[code], more)
		}
	}

	return texts
}

// reportWarnings opens an alert for each kind of warning that has lasted for problemAfter, and closes it when there is none any more.
func (p *pass) reportWarnings(ctx context.Context) error {
	w := p.warnings.Load()
	if w == nil || p.now.Sub(w.at) > warningsAge {
		return nil
	}

	// A warning that ended before its alert was opened has a problem without alert. The next one lasts from its own beginning.
	codes := slices.Concat(slices.Collect(maps.Keys(w.texts)), slices.Collect(maps.Keys(p.problems)))
	codes = slices.DeleteFunc(codes, func(code string) bool { return slices.Contains(task.LeaderWarnings, code) })
	for _, a := range p.known.alerts {
		if a.Kind == task.AlertCluster && !slices.Contains(task.LeaderWarnings, a.Code) {
			codes = append(codes, a.Code)
		}
	}
	slices.Sort(codes)

	var errs []error
	for _, code := range slices.Compact(codes) {
		if w.texts[code] == "" && !w.complete {
			continue
		}
		if err := p.report(ctx, code, w.texts[code], problemAfter); err != nil && !errors.Is(err, task.ErrConflict) {
			errs = append(errs, err)
		}
	}

	return errors.Join(errs...)
}
