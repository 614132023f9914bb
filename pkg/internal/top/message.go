package top

import (
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Message is an input of the Model.
type Message interface{ isMessage() }

// The types of messages.
type (
	// Key is a key that was pressed: the character itself, or enter, esc, tab, backtab, up, down, left, right,
	// pgup, pgdn, home, end, backspace, ctrl-c.
	Key string
	// Size is the size of the terminal in columns and lines.
	Size struct{ Width, Height int }
	// Clock is the current time. The Model has no other source of time.
	Clock time.Time
	// BoardUpdate is a board, or the error instead of it, and the server.
	BoardUpdate struct {
		Board  task.Board
		Err    error
		Server string
	}
	// TaskDetails contains the details of a task, or the error instead of them.
	TaskDetails struct {
		About Target
		Task  client.Task
		Runs  []task.Run
		Next  []client.Occurrence
		Why   task.Answer
		Err   error
	}
	// RunExplanation is the explanation of a run, or the error instead of it.
	RunExplanation struct {
		About Target
		Why   task.Answer
		Err   error
	}
	// RunOutput is further output of a run.
	RunOutput struct {
		About Target
		Run   task.Run
		Text  string
		Note  string // a remark about the output, not part of it
		Err   error
	}
	// ActionResult is the result of a change.
	ActionResult struct {
		Words string
		Err   error
	}
)

func (Key) isMessage()            {}
func (Size) isMessage()           {}
func (Clock) isMessage()          {}
func (BoardUpdate) isMessage()    {}
func (TaskDetails) isMessage()    {}
func (RunExplanation) isMessage() {}
func (RunOutput) isMessage()      {}
func (ActionResult) isMessage()   {}

// Command is something that the Program must do.
type Command interface{ isCommand() }

// The types of commands.
type (
	// Quit ends the screen.
	Quit struct{}
	// Refresh requests a new board at once.
	Refresh struct{}
	// ReadTask requests a TaskDetails.
	ReadTask struct{ About Target }
	// AskWhy requests a RunExplanation.
	AskWhy struct{ About Target }
	// FollowLogs requests messages of type RunOutput until StopLogs.
	FollowLogs struct{ About Target }
	// StopLogs ends FollowLogs.
	StopLogs struct{}
	// Trigger, Pause and Resume change a task. The result is an ActionResult.
	Trigger struct{ Of Target }
	Pause   struct{ Of Target }
	Resume  struct{ Of Target }
)

func (Quit) isCommand()       {}
func (Refresh) isCommand()    {}
func (ReadTask) isCommand()   {}
func (AskWhy) isCommand()     {}
func (FollowLogs) isCommand() {}
func (StopLogs) isCommand()   {}
func (Trigger) isCommand()    {}
func (Pause) isCommand()      {}
func (Resume) isCommand()     {}

// Target is the object of a row: a task, one of its runs, or a node.
type Target struct {
	Namespace, Task string
	Run             string
	Node            string
}

// isTask reports whether the target is a task or a run.
func (t Target) isTask() bool { return t.Task != "" }
