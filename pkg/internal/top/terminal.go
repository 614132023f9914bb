package top

import (
	"fmt"

	"github.com/clipperhouse/displaywidth"
	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/color"
)

// Tty is the user's terminal.
type Tty struct {
	screen   tcell.Screen
	messages chan Message
	closed   chan struct{}
	colour   bool
}

// OpenTty takes control of the terminal until Close. colour enables colors.
func OpenTty(colour bool) (*Tty, error) {
	// No queries are sent to the terminal, because the kernel knows its size and the usual keys suffice. (tmux
	// up to 3.3 answers the query for the size with height and width exchanged.)
	s, err := tcell.NewTerminfoScreen(tcell.OptNegotiation(false))
	if err == nil {
		err = s.Init()
	}

	if err != nil {
		return nil, fmt.Errorf("open the terminal: %w", err)
	}

	t := &Tty{screen: s, messages: make(chan Message, 16), closed: make(chan struct{}), colour: colour}
	w, h := s.Size()
	t.messages <- Size{w, h}
	go t.pumpEvents()

	return t, nil
}

// Close restores the terminal.
func (t *Tty) Close() {
	close(t.closed)
	t.screen.Fini()
}

// Messages returns keys and sizes.
func (t *Tty) Messages() <-chan Message { return t.messages }

// pumpEvents forwards events until the terminal is closed.
func (t *Tty) pumpEvents() {
	defer close(t.messages)
	for {
		var m Message

		select {
		case <-t.closed:
			return
		case e, open := <-t.screen.EventQ():
			if !open {
				return
			}
			if m = t.convertEvent(e); m == nil {
				continue
			}
		}

		select {
		case t.messages <- m:
		case <-t.closed:
			return
		}
	}
}

// convertEvent converts an event to a message, or nil if it is of no interest.
func (t *Tty) convertEvent(e tcell.Event) Message {
	switch e := e.(type) {
	case *tcell.EventResize:
		t.screen.Sync()
		w, h := t.screen.Size()
		return Size{w, h}
	case *tcell.EventKey:
		if k := keyName(e); k != "" {
			return Key(k)
		}
	}

	return nil
}

var keyNames = map[tcell.Key]string{
	tcell.KeyEnter: "enter", tcell.KeyEscape: "esc", tcell.KeyTab: "tab", tcell.KeyBacktab: "backtab", tcell.KeyUp: "up", tcell.KeyDown: "down",
	tcell.KeyLeft: "left", tcell.KeyRight: "right", tcell.KeyPgUp: "pgup", tcell.KeyPgDn: "pgdn", tcell.KeyHome: "home", tcell.KeyEnd: "end",
	tcell.KeyBackspace: "backspace", tcell.KeyCtrlC: "ctrl-c", tcell.KeyCtrlF: "ctrl-f", tcell.KeyCtrlB: "ctrl-b",
}

// keyName returns the name of a key.
func keyName(e *tcell.EventKey) string {
	if name := keyNames[e.Key()]; name != "" {
		return name
	}

	if e.Key() == tcell.KeyRune {
		if e.Str() == " " {
			return "space"
		}
		return e.Str()
	}

	return ""
}

// Draw shows a picture. Only what has changed is sent to the terminal.
func (t *Tty) Draw(p Picture) {
	wide, high := t.screen.Size()
	for y := range high {
		x := 0
		if y < len(p) {
			for _, s := range p[y] {
				x = t.putSpan(x, y, wide, s)
			}
		}

		for ; x < wide; x++ {
			t.screen.SetContent(x, y, ' ', nil, tcell.StyleDefault)
		}
	}

	t.screen.Show()
}

// putSpan draws a span at a position, and returns the next column.
func (t *Tty) putSpan(x, y, wide int, s Span) int {
	style := t.convertStyle(s.Style)

	for _, r := range s.Text {
		w := displaywidth.Rune(r)
		if x+w > wide {
			break
		}

		if w > 0 {
			t.screen.SetContent(x, y, r, nil, style)
			x += w
		}
	}

	return x
}

// convertStyle converts a style.
func (t *Tty) convertStyle(s Style) tcell.Style {
	style := tcell.StyleDefault.Bold(s&Bold != 0).Dim(s&Dim != 0).Reverse(s&Reverse != 0)

	if !t.colour {
		return style
	}

	switch s.Colour() {
	case Red:
		return style.Foreground(color.Maroon)
	case Green:
		return style.Foreground(color.Green)
	case Yellow:
		return style.Foreground(color.Olive)
	case Cyan:
		return style.Foreground(color.Teal)
	}

	return style
}
