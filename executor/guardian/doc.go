// Package guardian has the watchdog process that kills what a dead or frozen daemon left running.
//
// The daemon starts a guardian and keeps it alive: that is a Client. The guardian process itself runs Serve. They speak
// over the guardian's standard input, one JSON object a line:
//
//	daemon                                  guardian
//	Hello                       ─────────▶
//	                            ◀─────────  "ready", when it holds its lock
//	Message: attempts, sessions ─────────▶
//	Message: All                ─────────▶  knows all attempts
//	   …                                    kills an attempt whose session was silent for the Silence that its message allows
//	Message: Bye, end of input  ─────────▶  ends
//	end of input without a Bye  ─────────▶  kills all attempts, then says that the instance is cleared
//
// What is guaranteed:
//
//   - No process of an attempt exists that the guardian has not been told of: Announce and Flush come before the fork,
//     and Flush fails while there is no guardian.
//   - If the daemon dies, every process of its attempts is killed, and only then is its instance said to be cleared. If
//     a guardian knew only some of the attempts, it says nothing.
//   - If the daemon is frozen, its attempts are killed before others declare them lost.
//   - There is one guardian for a data directory at a time: it holds a lock there. A guardian that dies is replaced, and
//     told of all attempts; until then none starts.
//
// What is not: if the daemon and its guardian are killed together, nobody kills what they left until the daemon
// restarts; it then finds it by proctree.KillMarked.
//
// It touches no etcd key by itself: that an instance is cleared is said by a function that the daemon's program brings.
package guardian
