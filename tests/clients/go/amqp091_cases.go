// Each case is one test of test_amqp091.py: it gets a connection and a name nobody else uses.
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const rounds = 25

var url, name string

// Ends the process: what follows would only hide what failed.
func fail(format string, values ...interface{}) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
	os.Exit(1)
}

func must(err error, doing string) {
	if err != nil {
		fail("%s: %v", doing, err)
	}
}

func opened(connection *amqp.Connection) *amqp.Channel {
	channel, err := connection.Channel()
	must(err, "channel.open")
	return channel
}

func declare(channel *amqp.Channel, queue string) {
	found, err := channel.QueueDeclare(queue, true, false, false, false, nil)
	must(err, "queue.declare")
	if found.Name != queue {
		fail("declared %s, and was told of %s", queue, found.Name)
	}
}

func publish(channel *amqp.Channel, exchange, key, body string) {
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)}
	must(channel.Publish(exchange, key, false, false, message), "basic.publish")
}

func remove(channel *amqp.Channel, queue string) {
	_, err := channel.QueueDelete(queue, false, false, false)
	must(err, "queue.delete")
}

// What is asked without waiting is done in order.
func getBehindDeclare(connection *amqp.Connection) {
	channel := opened(connection)
	for round := 0; round < rounds; round++ {
		_, err := channel.QueueDeclare(name, true, false, false, true, nil)
		must(err, "queue.declare without waiting")
		_, found, err := channel.Get(name, true)
		must(err, "basic.get")
		if found {
			fail("a message in a queue that is new")
		}
		publish(channel, "", name, "x")
		declare(channel, name)
		if _, found, err = channel.Get(name, true); err != nil || !found {
			fail("basic.get: %v, %v", found, err)
		}
		remove(channel, name)
	}
}

// Channels of one connection that all wait for the disk: each gets the answers to what it asked.
func manyChannelsDeclareAndClose(connection *amqp.Connection) {
	var all sync.WaitGroup
	for number := 0; number < 8; number++ {
		queue := fmt.Sprintf("%s.%d", name, number)
		all.Add(1)
		go func() {
			defer all.Done()
			for round := 0; round < rounds; round++ {
				channel := opened(connection)
				declare(channel, queue)
				if _, found, err := channel.Get(queue, true); err != nil || found {
					fail("basic.get: %v, %v", found, err)
				}
				remove(channel, queue)
				must(channel.Close(), "channel.close")
			}
		}()
	}
	all.Wait()
}

func deletedUnderItsConsumer(connection *amqp.Connection) {
	channel := opened(connection)
	cancelled := channel.NotifyCancel(make(chan string, rounds))
	for round := 0; round < rounds; round++ {
		declare(channel, name)
		tag := fmt.Sprint("consumer ", round)
		deliveries, err := channel.Consume(name, tag, true, false, false, false, nil)
		must(err, "basic.consume")
		remove(channel, name)
		for range deliveries {
			fail("a delivery of a queue that was empty")
		}
		if found := <-cancelled; found != tag {
			fail("cancelled %s instead of %s", found, tag)
		}
	}
}

// Our close and the broker's cross on one channel; the others, and its number, are of use.
func bothCloseAChannel(connection *amqp.Connection) {
	other := opened(connection)
	for round := 0; round < rounds; round++ {
		channel := opened(connection)
		publish(channel, name+".missing", "", "x")
		channel.Close() // its own answer or the broker's error: that is chance
		declare(other, name)
	}
}

// The error of a channel is told, and the next one, which has the number, knows nothing of it.
func reopenedAfterAnError(connection *amqp.Connection) {
	for round := 0; round < rounds; round++ {
		channel := opened(connection)
		closed := channel.NotifyClose(make(chan *amqp.Error, 1))
		_, err := channel.QueueDeclarePassive(name+".missing", true, false, false, false, nil)
		var refused *amqp.Error
		if !errors.As(err, &refused) || refused.Code != amqp.NotFound {
			fail("expected 404, got %v", err)
		}
		if told := <-closed; told == nil || told.Code != amqp.NotFound {
			fail("expected to be told of 404, got %v", told)
		}
		channel = opened(connection)
		declare(channel, name)
		must(channel.Close(), "channel.close")
	}
}

// Confirms that the one before did not wait for are not given to the channel that has its number.
func reopenedWithConfirmsUnderWay(connection *amqp.Connection) {
	declare(opened(connection), name)
	for round := 0; round < rounds; round++ {
		channel := opened(connection)
		must(channel.Confirm(false), "confirm.select")
		for number := 0; number < 10; number++ {
			publish(channel, "", name, "unconfirmed")
		}
		must(channel.Close(), "channel.close")

		channel = opened(connection)
		must(channel.Confirm(false), "confirm.select")
		confirms := channel.NotifyPublish(make(chan amqp.Confirmation, 100))
		for number := uint64(1); number <= 3; number++ {
			publish(channel, "", name, "confirmed")
			if found := <-confirms; !found.Ack || found.DeliveryTag != number {
				fail("confirmed %v instead of %d", found, number)
			}
		}
		must(channel.Close(), "channel.close")
		if stray, more := <-confirms; more {
			fail("confirmed once more: %v", stray)
		}
	}
}

// A channel and its connection that were closed without an error say that there was none.
func closedWithoutAnError(*amqp.Connection) {
	for round := 0; round < rounds; round++ {
		connection, err := amqp.Dial(url)
		must(err, "connect")
		channel := opened(connection)
		ends := []chan *amqp.Error{
			connection.NotifyClose(make(chan *amqp.Error, 1)),
			channel.NotifyClose(make(chan *amqp.Error, 1)),
		}
		must(connection.Close(), "connection.close")
		for _, end := range ends {
			if told := <-end; told != nil {
				fail("told of %v", told)
			}
		}
	}
}

// Goroutines that share a connection and all close it.
func closedByMany(*amqp.Connection) {
	for round := 0; round < rounds; round++ {
		connection, err := amqp.Dial(url)
		must(err, "connect")
		var all sync.WaitGroup
		for number := 0; number < 32; number++ {
			all.Add(1)
			go func() {
				defer all.Done()
				err := connection.Close()
				var network *net.OpError // the first has closed the socket
				if err != nil && err != amqp.ErrClosed && !errors.As(err, &network) {
					fail("connection.close: %v", err)
				}
			}()
		}
		all.Wait()
	}
}

var cases = map[string]func(*amqp.Connection){
	"get_behind_declare":               getBehindDeclare,
	"many_channels_declare_and_close":  manyChannelsDeclareAndClose,
	"deleted_under_its_consumer":       deletedUnderItsConsumer,
	"both_close_a_channel":             bothCloseAChannel,
	"reopened_after_an_error":          reopenedAfterAnError,
	"reopened_with_confirms_under_way": reopenedWithConfirmsUnderWay,
	"closed_without_an_error":          closedWithoutAnError,
	"closed_by_many":                   closedByMany,
}

func main() {
	url, name = os.Args[1], os.Args[3]
	time.AfterFunc(25*time.Second, func() { panic("it hangs") }) // and says where
	connection, err := amqp.Dial(url)
	must(err, "connect")
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	cases[os.Args[2]](connection)
	must(connection.Close(), "connection.close")
	if told := <-closed; told != nil {
		fail("the connection ended with %v", told)
	}
}
