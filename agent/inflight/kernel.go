package inflight

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var errSlow = fmt.Errorf("reading the kernel's sockets: %w", os.ErrDeadlineExceeded)

// diagSockets asks the kernel by NETLINK_SOCK_DIAG (linux/inet_diag.h), which
// hands out only the sockets with that local port.
func diagSockets(deadline time.Time, port uint16, f func(conn)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(Limit.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	buf := make([]byte, 64<<10) // the kernel sends at most 32 KiB at a time
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if err := unix.Sendto(fd, diagRequest(family, port), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return fmt.Errorf("netlink request: %w", err)
		}
		if err := diagAnswers(fd, buf, deadline, f); err != nil {
			return fmt.Errorf("netlink answer: %w", err)
		}
	}
	return nil
}

// diagRequest is a nlmsghdr and an inet_diag_req_v2: TCP, every state, the
// local port in network order, all else any.
func diagRequest(family uint8, port uint16) []byte {
	const sockDiagByFamily, header, request = 20, 16, 56
	b := make([]byte, header+request)
	ne := binary.NativeEndian
	ne.PutUint32(b[0:], uint32(len(b)))
	ne.PutUint16(b[4:], sockDiagByFamily)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b[16], b[17] = family, unix.IPPROTO_TCP
	ne.PutUint32(b[20:], 0xffffffff) // idiag_states
	binary.BigEndian.PutUint16(b[24:], port)
	return b
}

// diagAnswers reads the messages of one dump to its end.
func diagAnswers(fd int, buf []byte, deadline time.Time, f func(conn)) error {
	for {
		if time.Now().After(deadline) {
			return errSlow
		}
		n, _, flags, _, err := unix.Recvmsg(fd, buf, nil, 0)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return err
		case flags&unix.MSG_TRUNC != 0 || n == 0:
			return io.ErrUnexpectedEOF
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch {
			case m.Header.Flags&unix.NLM_F_DUMP_INTR != 0:
				return errors.New("the sockets changed while they were listed")
			case m.Header.Type == unix.NLMSG_DONE || m.Header.Type == unix.NLMSG_ERROR:
				return diagErrno(m.Data)
			}
			c, err := parseDiag(m.Data)
			if err != nil {
				return err
			}
			f(c)
		}
	}
}

// diagErrno reads the number that both ends of a dump carry. A kernel without
// tcp_diag says so in its NLMSG_DONE (netlink_dump, net/netlink/af_netlink.c):
// whoever takes that for the end of a list finds no sockets.
func diagErrno(b []byte) error {
	if len(b) < 4 {
		return io.ErrUnexpectedEOF
	}
	if n := int32(binary.NativeEndian.Uint32(b)); n < 0 {
		return syscall.Errno(-n)
	}
	return nil
}

// parseDiag reads an inet_diag_msg.
func parseDiag(b []byte) (conn, error) {
	if len(b) < 72 || b[0] != unix.AF_INET && b[0] != unix.AF_INET6 {
		return conn{}, fmt.Errorf("%d bytes are no inet_diag_msg", len(b))
	}
	size := 4
	if b[0] == unix.AF_INET6 {
		size = 16
	}
	local, _ := netip.AddrFromSlice(b[8 : 8+size])
	remote, _ := netip.AddrFromSlice(b[24 : 24+size])
	return conn{
		local:   netip.AddrPortFrom(local.Unmap(), binary.BigEndian.Uint16(b[4:])),
		remote:  netip.AddrPortFrom(remote.Unmap(), binary.BigEndian.Uint16(b[6:])),
		state:   b[1],
		pending: binary.NativeEndian.Uint32(b[60:]),
	}, nil
}

// procSockets reads the text of dir/tcp and dir/tcp6 line by line. Without IPv6
// there is no tcp6.
func procSockets(deadline time.Time, dir string, port uint16, f func(conn)) error {
	for _, name := range []string{"tcp", "tcp6"} {
		file, err := os.Open(dir + "/" + name)
		if errors.Is(err, fs.ErrNotExist) && name == "tcp6" {
			return nil
		}
		if err != nil {
			return err
		}
		err = procLines(deadline, file, port, f)
		file.Close()
		if err != nil {
			return fmt.Errorf("%s/%s: %w", dir, name, err)
		}
	}
	return nil
}

func procLines(deadline time.Time, file io.Reader, port uint16, f func(conn)) error {
	in := bufio.NewReaderSize(file, 64<<10)
	if _, err := in.ReadSlice('\n'); err != nil {
		return fmt.Errorf("no headline: %w", err)
	}
	for i := 0; ; i++ {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case err != nil:
			return fmt.Errorf("half a line: %w", err)
		case i%1024 == 0 && time.Now().After(deadline):
			return errSlow
		}
		c, err := parseProc(line)
		if err != nil {
			return err
		}
		if c.local.Port() == port {
			f(c)
		}
	}
}

// parseProc reads one line of /proc/net/tcp or tcp6:
//
//	sl local:port remote:port state tx_queue:rx_queue …
//
// in hexadecimal; addresses are printed as 32-bit words of the machine's own
// byte order (get_tcp4_sock, net/ipv4/tcp_ipv4.c).
func parseProc(line []byte) (conn, error) {
	var field [5][]byte
	rest := line
	for i := range field {
		rest = bytes.TrimLeft(rest, " ")
		end := bytes.IndexAny(rest, " \n")
		if end <= 0 {
			return conn{}, fmt.Errorf("line %.80q has no five fields", line)
		}
		field[i], rest = rest[:end], rest[end:]
	}
	local, err1 := parseProcAddr(field[1])
	remote, err2 := parseProcAddr(field[2])
	state, err3 := strconv.ParseUint(string(field[3]), 16, 8)
	tx, _, ok := bytes.Cut(field[4], []byte(":"))
	pending, err4 := strconv.ParseUint(string(tx), 16, 32)
	if err := errors.Join(err1, err2, err3, err4); err != nil || !ok {
		return conn{}, fmt.Errorf("line %.80q is no socket", line)
	}
	return conn{local, remote, uint8(state), uint32(pending)}, nil
}

func parseProcAddr(s []byte) (netip.AddrPort, error) {
	var raw [16]byte
	digits, port, _ := bytes.Cut(s, []byte(":"))
	p, err := strconv.ParseUint(string(port), 16, 16)
	if err != nil || len(digits) != 8 && len(digits) != 32 {
		return netip.AddrPort{}, fmt.Errorf("%.80q is no address", s)
	}
	size := len(digits) / 2
	for i := 0; i < size; i += 4 {
		word, err := strconv.ParseUint(string(digits[2*i:2*i+8]), 16, 32)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("%.80q is no address", s)
		}
		binary.NativeEndian.PutUint32(raw[i:], uint32(word))
	}
	addr, _ := netip.AddrFromSlice(raw[:size])
	return netip.AddrPortFrom(addr.Unmap(), uint16(p)), nil
}
