"""A producer forgets topics that it no longer writes to, and none with a record on its way."""

from runfold.log.topic_use import IDLE_SECONDS, LOOK_SECONDS, TopicUse


def test_the_topic_of_an_ended_run_is_unneeded_once_its_records_have_arrived() -> None:
    use = TopicUse()
    use.begin("a")
    use.finish("a")

    assert use.unneeded() == set()

    use.end("a")
    assert use.unneeded() == {"a"}
    assert use.unneeded() == set()


def test_a_later_record_makes_a_topic_needed_again() -> None:
    use = TopicUse()
    use.begin("a")
    use.end("a")
    use.finish("a")

    use.begin("a")
    use.end("a")

    assert use.unneeded() == set()


def test_an_idle_topic_is_unneeded_after_its_time_unless_a_record_is_on_its_way() -> None:
    now = [0.0]
    use = TopicUse(clock=lambda: now[0])
    for topic in ("idle", "written", "waiting"):
        use.begin(topic)
    use.end("idle")
    use.end("written")
    now[0] = IDLE_SECONDS - 1
    use.begin("written")
    use.end("written")

    assert use.unneeded() == set()

    now[0] = IDLE_SECONDS - 1 + LOOK_SECONDS
    assert use.unneeded() == {"idle"}
