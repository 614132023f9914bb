package top

import (
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Message is something that happened.
type Message interface{ isMessage() }

// The messages.
type (
	// Key is a key: a letter as itself, or enter, esc, tab, backtab, up, down, left,
	// right, pgup, pgdn, home, end, backspace, ctrl-c.
	Key string
	// Size is the terminal's, in columns and lines.
	Size struct{ Width, Height int }
	// Clock says what time it is. The Model takes it from nowhere else.
	Clock time.Time
	// Boarded is a board, or why there is none, and from which server.
	Boarded struct {
		Board  task.Board
		Err    error
		Server string
	}
	// Told is what the API knows of a task, or why not.
	Told struct {
		About Target
		Task  client.Task
		Runs  []task.Run
		Next  []client.Occurrence
		Why   task.Answer
		Err   error
	}
	// Answered is why a task ran, or did not.
	Answered struct {
		About Target
		Why   task.Answer
		Err   error
	}
	// Written is more of what a run wrote.
	Written struct {
		About Target
		Run   task.Run
		Text  string
		Note  string // about the output, not of it
		Err   error
	}
	// Done is what became of a change.
	Done struct {
		Words string
		Err   error
	}
)

func (Key) isMessage()      {}
func (Size) isMessage()     {}
func (Clock) isMessage()    {}
func (Boarded) isMessage()  {}
func (Told) isMessage()     {}
func (Answered) isMessage() {}
func (Written) isMessage()  {}
func (Done) isMessage()     {}

// Command is something that the Model wants done.
type Command interface{ isCommand() }

// The commands.
type (
	// Quit ends the screen.
	Quit struct{}
	// Refresh asks for a board at once.
	Refresh struct{}
	// Tell asks for Told.
	Tell struct{ About Target }
	// AskWhy asks for Answered.
	AskWhy struct{ About Target }
	// FollowLogs asks for Written, again and again until StopLogs.
	FollowLogs struct{ About Target }
	// StopLogs ends it.
	StopLogs struct{}
	// Trigger, Pause and Resume change a task; Done says what became of it.
	Trigger struct{ Of Target }
	Pause   struct{ Of Target }
	Resume  struct{ Of Target }
)

func (Quit) isCommand()       {}
func (Refresh) isCommand()    {}
func (Tell) isCommand()       {}
func (AskWhy) isCommand()     {}
func (FollowLogs) isCommand() {}
func (StopLogs) isCommand()   {}
func (Trigger) isCommand()    {}
func (Pause) isCommand()      {}
func (Resume) isCommand()     {}

// Target is what a row is about: a task, maybe one of its runs, or a node.
type Target struct {
	Namespace, Task string
	Run             string
	Node            string
}

func (t Target) isTask() bool { return t.Task != "" }
