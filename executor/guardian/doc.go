// Package guardian implements the watchdog process that kills what a dead or frozen daemon left running.
//
// In the daemon, a Client starts the guardian and restarts it when it dies. The guardian process runs Serve. The daemon
// writes to the guardian's standard input, one JSON object per line:
//
//	daemon                                  guardian
//	Hello                       ─────────▶
//	                            ◀─────────  "ready", when it holds its lock
//	Message: attempts, sessions,
//	   which have HTTP attempts ─────────▶
//	Message: All                ─────────▶  has all attempts
//	   …                                    kills an attempt whose session was silent for the Silence that its message allows,
//	                                        and the daemon if that attempt is an HTTP request
//	Message: Bye, end of input  ─────────▶  ends
//	end of input without a Bye  ─────────▶  kills all attempts, then reports that the instance is cleared
//
// Guarantees:
//
//   - The guardian knows every attempt before its process exists: Announce and Flush come before the fork, and Flush
//     fails while there is no guardian.
//   - If the daemon dies, every process of its attempts is killed, and only then is its instance reported as
//     cleared. A guardian that knows only some of the attempts reports nothing.
//   - If the daemon is frozen, its attempts are killed before other nodes declare them lost (G17). HTTP requests end with
//     the daemon, so the guardian kills it, which ends all other attempts, too. It knows of a session's first HTTP
//     attempt before anything of it is sent.
//   - A data directory has at most one guardian at a time, which holds a lock there. If a guardian dies, the daemon
//     starts another and sends it all attempts; until then, no attempt starts.
//
// Not guaranteed: if the daemon and its guardian are killed together, the attempts run on until the daemon restarts,
// which then kills them with proctree.KillMarked. A daemon that is the first process of a container cannot be killed from
// within the container. If it freezes, only its own check before each write keeps HTTP requests from being sent later.
//
// The package itself uses no etcd key: the caller of Serve provides the function that records that an instance is cleared.
package guardian
