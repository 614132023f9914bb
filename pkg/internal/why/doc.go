// Package why answers the question of every scheduler's users: why did my task
// run at that time, or not, and will it?
//
// It is pure: Facts are what is on record, read by somebody at one revision; a
// Question is about an instant, a local time, a range, or nothing in particular;
// For makes an Answer of both, a sentence and its evidence. It has no clock, no
// network, and guesses nothing: what is not on record any more it calls so, and
// says what is known all the same.
//
// How it finds the answer for an instant:
//
//	outcome on record? ──────► its state and its reason
//	│ no
//	version in force then? ──► none: there was no task; not on record: forgotten
//	│ a tick of it?      ────► no: the nearest ticks, the gap, the pause
//	│ yes
//	decided? (from, watermark) ─► no: undecided, and what keeps it from being decided
//	│ yes
//	trimmed? changed before it was decided? ─► forgotten, overtaken
//
// A time to come goes the way of the version in force now, against the pause, the
// freeze, the nodes and the counts of now.
package why
