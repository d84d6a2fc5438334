// A server on the loopback that answers ranges of the files in a folder after a pause: remote_server FOLDER.
//
// It prints its port. GET /?pause_ms=20 sets the pause, and GET /?counts returns how many requests and bytes there were
// since the last time, and the processor time that the server took for them, in milliseconds. Files are below /files/, so
// that the same paths serve for a bucket of that name. It is written in Go because a server in Python takes more processor
// time than the clients that it is to measure.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

var requests, sent, pauseMicroseconds, usedBefore atomic.Int64

// counting counts the bytes of answers, and lets the system copy them from files.
type counting struct{ http.ResponseWriter }

func (answer counting) Write(data []byte) (int, error) {
	count, err := answer.ResponseWriter.Write(data)
	sent.Add(int64(count))
	return count, err
}

func (answer counting) ReadFrom(from io.Reader) (int64, error) {
	count, err := answer.ResponseWriter.(io.ReaderFrom).ReadFrom(from)
	sent.Add(count)
	return count, err
}

func control(answer http.ResponseWriter, asked *http.Request) {
	if pause, err := strconv.ParseFloat(asked.URL.Query().Get("pause_ms"), 64); err == nil {
		pauseMicroseconds.Store(int64(pause * 1000))
	}
	used := usedMilliseconds()
	fmt.Fprintf(answer, "[%d, %d, %d]", requests.Swap(0), sent.Swap(0), used-usedBefore.Swap(used))
}

func usedMilliseconds() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return (usage.Utime.Nano() + usage.Stime.Nano()) / 1_000_000
}

func main() {
	folder := os.Args[1]
	http.HandleFunc("/", func(answer http.ResponseWriter, asked *http.Request) {
		if asked.URL.Path == "/" {
			control(answer, asked)
			return
		}
		requests.Add(1)
		time.Sleep(time.Duration(pauseMicroseconds.Load()) * time.Microsecond)
		file, err := os.Open(filepath.Join(folder, strings.TrimPrefix(asked.URL.Path, "/files/")))
		if err != nil {
			http.NotFound(answer, asked)
			return
		}
		defer file.Close()
		facts, err := file.Stat()
		if err != nil || facts.IsDir() {
			http.NotFound(answer, asked)
			return
		}
		answer.Header().Set("ETag", fmt.Sprintf("%q", strconv.FormatInt(facts.Size(), 16)))
		answer.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(counting{answer}, asked, "", facts.ModTime(), file)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, nil))
}
