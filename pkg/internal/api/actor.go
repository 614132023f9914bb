package api

import (
	"context"
	"strings"
	"time"
	"unicode"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

// maxActorName is how many bytes of a token's name, or of a certificate's, are kept.
const maxActorName = 128

const (
	// noteWithin is how long noteChange tries to record a change, and notePause how long
	// it waits between two tries.
	noteWithin = 5 * time.Second
	notePause  = 200 * time.Millisecond
)

// actor returns who made a request, in the one form that records and events have: the
// name of the token's holder, the token's id, and the common name of the client
// certificate if it was verified:
//
//	ann (token k3vq7t2m5xw4hzra, certificate ann-laptop)
//	token k3vq7t2m5xw4hzra
//	unix:uid=0
//
// Two tokens may have the same name, and a certificate alone grants nothing: only all of
// them say whose request it was. The id is no secret: it is the token's key in etcd.
func (c caller) actor() string {
	var by []string
	if c.token != "" && c.who != nameless(c.token) {
		by = append(by, "token "+c.token)
	}
	if c.certificate != "" {
		by = append(by, "certificate "+actorName(c.certificate))
	}

	text := actorName(c.who)
	if len(by) > 0 {
		text += " (" + strings.Join(by, ", ") + ")"
	}
	return text
}

// nameless is the name of a caller whose token has none.
func nameless(token string) string { return "token " + token }

// actorName returns a name as records keep it: one line, of a bounded length, without
// what sets the token and the certificate apart from it, so that no name can pretend to
// have another token.
func actorName(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || strings.ContainsRune("(),", r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxActorName {
		s = strings.ToValidUTF8(s[:maxActorName], "") + "…"
	}
	return s
}

// noteChange records who changed something that has no record of its own in etcd: the
// members of etcd, or records that a repair has deleted. The change itself has happened,
// so that a failure is logged, with all that the record would say.
func (s *server) noteChange(c *call, change string) {
	s.log.Info("changed the cluster", zap.String("change", change), zap.String("by", c.actor()))

	// The client may be gone, and an etcd that has just lost a member may be without a
	// leader for a moment: the record is tried for a while all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), noteWithin)
	defer cancel()
	pause := time.NewTicker(notePause)
	defer pause.Stop()
	for {
		err := retryConflict(ctx, func() error { return s.recordChange(ctx, c.actor(), change) })
		if err == nil {
			return
		}
		select {
		case <-pause.C:
			continue
		case <-ctx.Done():
		}
		s.log.Warn("could not record who changed the cluster", zap.String("change", change), zap.String("by", c.actor()), zap.Error(err))
		return
	}
}

func (s *server) recordChange(ctx context.Context, actor, change string) error {
	old, err := s.Store.Cluster(ctx)
	if err != nil {
		return err
	}
	return s.Store.ChangeCluster(ctx, old, old.MarkChanged(actor, s.now(), change))
}

// requested returns a run as somebody asks for it, with the environment that they give.
func (c *call) requested(run task.Run, env map[string]string) task.Run {
	run.CreatedBy, run.EnvNames = c.actor(), task.EnvNamesOf(env)
	return run
}
