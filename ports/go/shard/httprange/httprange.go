// Package httprange reads files behind a URL by ranges, for shard.NewReader and everything else that takes an io.ReaderAt.
//
// Opening costs one request, which brings the size of the file and its first 64 KiB: the whole head of most files. Each
// further read costs one.
package httprange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/shard-format/shard/ports/go/shard"
)

const firstBytes = 64 << 10

// Source is a file behind a URL. Any number of goroutines may read from it.
type Source struct {
	ctx    context.Context
	client *http.Client
	url    string
	name   string
	head   []byte
	// size and tag must be the same in every answer.
	size int64
	tag  string
}

// Open asks for the first bytes of a file. All requests use the client (nil for http.DefaultClient) and the context: when it
// ends, reading fails. The server must answer range requests.
func Open(ctx context.Context, client *http.Client, address string) (*Source, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, &shard.Error{Code: shard.CodeInvalidArgument, Problem: "not a URL", Err: err}
	}
	if client == nil {
		client = http.DefaultClient
	}
	// Errors do not show what may be secret: the query and a password.
	shown := url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: parsed.Path}
	s := &Source{ctx: ctx, client: client, url: address, name: shown.String(), size: -1}
	answer, err := s.request(0, firstBytes)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.body.Close() }()
	head := make([]byte, min(answer.size, firstBytes))
	if _, err := io.ReadFull(answer.body, head); err != nil {
		return nil, s.failed("the answer is incomplete", err)
	}
	s.size, s.tag, s.head = answer.size, answer.tag, head
	return s, nil
}

// OpenShard opens a Shard file behind a URL; see Open.
func OpenShard(ctx context.Context, client *http.Client, address string, options ...shard.Options) (*shard.ShardReader, error) {
	source, err := Open(ctx, client, address)
	if err != nil {
		return nil, err
	}
	return shard.NewReader(source, source.Size(), options...)
}

// Name is the URL without its query.
func (s *Source) Name() string { return s.name }

// Size is the size of the file.
func (s *Source) Size() int64 { return s.size }

// ReadAt reads with one request, or none for the first 64 KiB.
func (s *Source) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, &shard.Error{Code: shard.CodeInvalidArgument, Path: s.name, Problem: "the offset is negative"}
	}
	wanted := p[:max(0, min(int64(len(p)), s.size-offset))]
	var ending error
	if len(wanted) < len(p) {
		ending = io.EOF
	}
	if offset+int64(len(wanted)) <= int64(len(s.head)) {
		return copy(wanted, s.head[min(offset, int64(len(s.head))):]), ending
	}
	if len(wanted) == 0 {
		return 0, ending
	}
	answer, err := s.request(offset, int64(len(wanted)))
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.body.Close() }()
	if answer.size != s.size || answer.tag != s.tag {
		return 0, s.failed("the file changed while it was read", nil)
	}
	count, err := io.ReadFull(answer.body, wanted)
	if err != nil {
		return count, s.failed("the answer is incomplete", err)
	}
	return count, ending
}

type answer struct {
	body io.ReadCloser
	size int64
	tag  string
}

func (s *Source) request(offset, length int64) (*answer, error) {
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, s.failed("not a URL", err)
	}
	request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))
	request.Header.Set("Accept-Encoding", "identity")
	response, err := s.client.Do(request)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) { // it has the whole URL
			err = inner.Err
		}
		return nil, s.failed("the request failed", err)
	}
	start, size, ok := parseContentRange(response.Header.Get("Content-Range"))
	if response.StatusCode != http.StatusPartialContent || !ok || start != offset {
		_ = response.Body.Close()
		return nil, s.failed("the server does not answer with the range", fmt.Errorf("%s, Content-Range %.80q", response.Status, response.Header.Get("Content-Range")))
	}
	tag := response.Header.Get("ETag")
	if tag == "" {
		tag = response.Header.Get("Last-Modified")
	}
	return &answer{response.Body, size, tag}, nil
}

func (s *Source) failed(problem string, err error) error {
	return &shard.Error{Code: shard.CodeIOError, Path: s.name, Problem: problem, Err: err}
}

// parseContentRange reads "bytes 0-99/1234".
func parseContentRange(text string) (start, size int64, ok bool) {
	text, ok = strings.CutPrefix(text, "bytes ")
	place, total, hasTotal := strings.Cut(text, "/")
	first, _, hasEnd := strings.Cut(place, "-")
	start, err := strconv.ParseInt(first, 10, 64)
	size, totalErr := strconv.ParseInt(total, 10, 64)
	return start, size, ok && hasTotal && hasEnd && err == nil && totalErr == nil && start >= 0 && size >= start
}
