package check

import "github.com/carillonhq/carillon/pkg/task"

// judgePause judges what a record in an inbox, which is written over another, says of
// a pause ("state"): that it stands still only if that was asked for, that nothing
// but a person, or a node that says why, takes it back, and that its sum grows.
func (c *checker) judgePause(ch *runChange, r *run, before attempt, put attemptPut) {
	wrong := func(format string) { c.breachOf("state", ch.ref, r.tick, put.key, format, ch.id) }
	still := put.State == task.Paused
	if still == put.PausedAt.IsZero() {
		wrong("run %s does not say since when it is paused, or says so and is not")
	}
	switch {
	case still && before.State != task.Paused && !put.PauseRequested:
		wrong("run %s is paused, and nobody has asked for that")
	case before.PauseRequested && !put.PauseRequested && put.ResumedBy == "" && (put.Message == "" || still):
		wrong("a pause of run %s was overwritten")
	case put.PauseRequested && put.PausedBy == "":
		wrong("a pause of run %s was asked for by nobody")
	}
	if put.PausedMS < before.PausedMS {
		wrong("run %s was paused for less time than before")
	}
}

// judgeUnpaused checks that nothing stands still that a node does not have.
func (c *checker) judgeUnpaused(ch *runChange, r *run, rec *task.Run, key string) {
	if !rec.PausedAt.IsZero() || rec.PausedBy != "" || rec.State == task.Paused {
		c.breachOf("state", ch.ref, r.tick, key, "run %s is said to be paused, and no node has it", ch.id)
	}
}
