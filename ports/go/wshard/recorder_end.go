package wshard

import (
	"errors"
	"os"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// WriteFinal records observations after the last step, for any channels of signal/. No step can follow.
func (w *StreamWriter) WriteFinal(values map[string][]byte) error {
	g := w.steps
	if g == nil {
		return fault.Located(invalid("the channels of the steps are not declared"), w.path, "")
	}
	final := make(map[*recordedChannel][]byte, len(values))
	for _, c := range g.channels[:g.named] {
		if value, there := values[c.key]; there && c.block == laneSignal+"/"+c.row["id"].(string) {
			if err := c.check(value); err != nil {
				return fault.Located(err, w.path, "")
			}
			final[c] = append([]byte(nil), value...)
		}
	}
	if len(final) != len(values) {
		return fault.Located(invalid("the steps do not have all of these observations"), w.path, "")
	}
	g.fill.Lock()
	defer g.fill.Unlock()
	if err := w.recorder.failed(); err != nil {
		return err
	}
	if w.isFinal {
		return fault.Located(invalid("the final observation is recorded already"), w.path, "")
	}
	w.isFinal = true
	w.recorder.handOver(g)
	w.recorder.send(job{final: final})
	return nil
}

// Finish makes the episode: it appears at EpisodePath, and the journal is removed. If that fails, the journal stays, for
// Recover.
func (w *StreamWriter) Finish() error {
	w.end.Lock()
	defer w.end.Unlock()
	if w.isClosed {
		return fault.Located(broken(shard.CodeClosed, "", "the recording is over"), w.path, "")
	}
	w.isClosed = true
	err := w.recorder.stop()
	if err == nil {
		err = w.finish()
	}
	return errors.Join(err, w.recorder.release())
}

func (w *StreamWriter) finish() error {
	r := w.recorder
	end := shard.Object{}
	if dropped := r.droppedHere(); len(dropped) > 0 {
		end["dropped"] = dropped
	}
	if err := r.journal.addText(frameEnd, end); err != nil {
		return err
	}
	if err := r.journal.flush(); err != nil {
		return err
	}
	if r.roller.index > 0 {
		if err := r.roller.finisher.finishAll(r.journal); err != nil {
			return err
		}
		if !w.options.Overwrite || !exists(w.path) {
			return nil
		}
		return whileLocked(w.path, func() error { // the chunks replace it
			if err := os.Remove(w.path); err != nil {
				return fault.IO("cannot remove", w.path, err)
			}
			return nil
		})
	}
	if err := checkTarget(w.path, w.options.Overwrite); err != nil {
		return err
	}
	err := whileLocked(w.path, func() error {
		_, err := saveRecorded(r.journal.path, w.path, w.options.Sync != SyncNever)
		return err
	})
	if err != nil {
		return err
	}
	return r.journal.remove()
}

// release closes the journals that are left.
func (r *recorder) release() error {
	return errors.Join(r.roller.finisher.close(), r.journal.close())
}

// Close stops recording and keeps the journal, for Recover. It does nothing after Finish.
func (w *StreamWriter) Close() error {
	w.end.Lock()
	defer w.end.Unlock()
	if w.isClosed {
		return nil
	}
	w.isClosed = true
	return errors.Join(w.recorder.stop(), w.recorder.release())
}

// Abort stops recording and deletes the journal and the finished chunks.
func (w *StreamWriter) Abort() error {
	w.end.Lock()
	defer w.end.Unlock()
	if w.isClosed {
		return nil
	}
	w.isClosed = true
	_ = w.recorder.stop() // what cannot be written is deleted anyway
	var err error
	if w.recorder.roller.index > 0 {
		err = w.recorder.roller.finisher.remove()
	}
	return errors.Join(err, w.recorder.journal.remove(), w.recorder.release())
}
