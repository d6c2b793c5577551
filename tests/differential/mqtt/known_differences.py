"""Scenarios in which BraidMQ answers otherwise than Mosquitto, each with the clause that allows or
wants it. What BraidMQ answers is in ``ours.json``, and that is compared, too.

Numbers are of the specification of MQTT 5 unless 3.1.1 is named.
"""

_TELLS_WHY = (
    "a DISCONNECT with the reason goes first (4.13.1: the server should send one before it closes);"
    " Mosquitto hangs up without a word"
)
_MALFORMED = "reserved flags are malformed (MQTT-2.1.3-1); Mosquitto does not look at them here"
_NOT_FOR_CLIENTS = (
    "table 2-1 in 2.1.2 has no such packet from a client, so it is a protocol error (4.13.1);"
    " Mosquitto lets it pass"
)
_PROTOCOL_ERROR = "named a Protocol Error there, 0x82; Mosquitto calls it malformed, 0x81"
_WHO = "0x86, return code 4 in 3.1.1, is for user names and passwords that are wrong (3.2.2.2)"
_ID_0 = "packet identifier 0 can be read and must not be sent (MQTT-2.2.1-3): 0x82, not 0x81"
_VERSIONS = "CONNACK says that the version is not supported before we close, as 3.1.2.2 allows"
_SHARE = "$share/{name}/{filter} has a name without wildcards and a filter (MQTT-4.8.2-1, -2)"
_ONE_COPY = "3.3.4 leaves it open whether overlapping subscriptions are one message or several"
_UNICODE = "1.5.4 allows these characters; a receiver may refuse them, and Mosquitto does"
_TWO_RECEIVERS = (
    "a shared subscription is not the session's own: its message comes besides (4.8.2). Mosquitto"
    " drops it as a duplicate for clients of 3.1.1 only"
)
_NOT_FOUND = "0x92 is for packet identifiers that are not known (3.6.2.1, 3.7.2.1)"
_NOBODY = (
    "3.5.2.1 has 0x10 for PUBREC as 3.4.2.1 has it for PUBACK; Mosquitto says it in PUBACK only"
)
_SENT = (
    "MQTT-4.4.0-1, MQTT-4.3.3-7: what was sent and not answered is sent again, and does not expire"
    " any more; Mosquitto lets it"
)
_SYS = (
    "a publish that is refused: 0x90 says that it is the name (3.4.2.1); in 3.1.1 MQTT-3.3.5-2"
    " leaves a false acknowledgement or the end of the connection, and we lose nothing in silence"
)
_WILL_ON_TAKEOVER = (
    "a will without delay is due when its connection is closed, and a takeover closes it (3.1.4)"
)
_TAKEN_OVER = "MQTT-3.1.4-3: the old connection is told 0x8E"
_WILL_WITH_SESSION = "the session ends, and with it the delay of its will (MQTT-3.1.2-8)"


def _both(name: str, reason: str) -> dict[str, str]:
    return {f"{name}.v3": reason, f"{name}.v5": reason}


KNOWN_DIFFERENCES: dict[str, str] = {
    **_both("connecting.level_of_5_and_a_bridge", _VERSIONS),
    "retaining.no_local_and_ones_own.v5": (
        "MQTT-3.8.3-3 makes no exception of what is retained; from Mosquitto a client gets back"
        " what it published itself, and a bridge its older messages over its newer ones"
    ),
    **_both("connecting.wrong_password", _WHO),
    **_both("connecting.unknown_user", _WHO),
    **_both("connecting.user_without_password", _WHO),
    **_both("connecting.what_follows_a_refused_connect_is_not_processed", _WHO),
    "connecting.authentication_data_without_method.v5": (
        "a protocol error by 3.1.2.11.10; Mosquitto does not look"
    ),
    "connecting.auth_that_nobody_asked_for.v5": _TELLS_WHY,
    "connecting.second_connect.v5": _TELLS_WHY,
    "connecting.connack_from_a_client.v5": _TELLS_WHY,
    "connecting.disconnect_with_unknown_reason.v5": _TELLS_WHY,
    "connecting.disconnect_with_wrong_property.v5": _TELLS_WHY,
    "connecting.takeover.v5": _TAKEN_OVER,
    "connecting.takeover_with_clean_start.v5": _TAKEN_OVER,
    "connecting.takeover_of_a_clean_session.v5": _TAKEN_OVER,
    **_both("connecting.another_protocol_name", _VERSIONS),
    **_both("connecting.lower_case_protocol_name", _VERSIONS),
    **_both("connecting.empty_protocol_name", _VERSIONS),
    "connecting.keep_alive_of_zero.v5": (
        "3.1.2.10: 0 turns keep alive off, and we have no limit set; Mosquitto's default is 65535"
    ),
    "connecting.request_response.v5": (
        "3.2.2.3.15: who asks gets response information; Mosquitto gives none"
    ),
    "connecting.will_with_payload_format_2.v5": "3.1.3.2.3: 0 or 1; Mosquitto does not look",
    "connecting.will_with_wildcards_in_response_topic.v5": (
        "MQTT-3.3.2-14, and 3.1.3.2.6 refers to it; Mosquitto does not look"
    ),
    "malformed.kind_0.v5": (
        "a packet of kind 0 is forbidden by 2.1.2 and can't be read: 0x81; Mosquitto says 0x82"
    ),
    "malformed.kind_15_with_flags.v5": _TELLS_WHY,
    "malformed.remaining_length_of_five_bytes.v5": _TELLS_WHY,
    "malformed.puback_of_one_byte.v5": _TELLS_WHY,
    "malformed.puback_empty.v5": _TELLS_WHY,
    "malformed.puback_id_0.v5": _TELLS_WHY,
    "malformed.pubrel_with_wrong_flags.v5": _TELLS_WHY,
    "malformed.pubrel_id_0.v5": _TELLS_WHY,
    "malformed.disconnect_with_flags.v5": _TELLS_WHY,
    **_both("malformed.puback_with_flags", _MALFORMED),
    **_both("malformed.pubrec_with_flags", _MALFORMED),
    **_both("malformed.pubcomp_with_flags", _MALFORMED),
    **_both("malformed.pingreq_with_flags", _MALFORMED),
    **_both(
        "malformed.pingreq_with_a_body",
        "PINGREQ has neither header nor payload (3.12.2, 3.12.3); Mosquitto does not look",
    ),
    **_both("malformed.pingresp_from_a_client", _NOT_FOR_CLIENTS),
    **_both("malformed.suback_from_a_client", _NOT_FOR_CLIENTS),
    **_both("malformed.unsuback_from_a_client", _NOT_FOR_CLIENTS),
    "publishing.nobody_subscribed.v5": _NOBODY,
    "publishing.qos_2_pubrel_twice.v5": _NOT_FOUND,
    "publishing.pubrel_of_an_unknown_id.v5": _NOT_FOUND,
    "publishing.pubrec_of_an_unknown_id.v5": _NOT_FOUND,
    **_both(
        "publishing.qos_2_session_that_is_not_kept_forgets_its_ids",
        "4.3.3 leaves it open whether a message is handed on with PUBLISH or with PUBREL",
    ),
    **_both("publishing.to_sys", _SYS),
    "publishing.receive_maximum_of_the_client.v5": (
        "MQTT-3.3.4-9: two may be under way, and after one PUBCOMP one more; Mosquitto sends two"
    ),
    "publishing.receive_maximum_of_the_broker.v5": (
        "who sends more than the receive maximum is disconnected with 0x93 (3.3.4); Mosquitto takes"
        " no notice"
    ),
    "publishing.puback_with_an_unknown_reason.v5": (
        "MQTT-3.4.2-1: not one of PUBACK's reason codes; Mosquitto takes it"
    ),
    **_both("publishing.dup_at_qos_0", "MQTT-3.3.1-2, in both versions; Mosquitto does not look"),
    "publishing.payload_format_2.v5": "3.3.2.3.2: 0 or 1; Mosquitto hands it on",
    "publishing.payload_format_twice.v5": _TELLS_WHY,
    "publishing.message_expiry_twice.v5": _TELLS_WHY,
    "publishing.content_type_twice.v5": _TELLS_WHY,
    "publishing.response_topic_with_wildcards.v5": "MQTT-3.3.2-14; Mosquitto hands it on",
    "publishing.response_topic_that_is_not_utf8.v5": _TELLS_WHY,
    "publishing.subscription_id.v5": "MQTT-3.3.4-6; Mosquitto does not look",
    "publishing.alias_0.v5": "MQTT-3.3.2-8: the alias is what is wrong, 0x94; Mosquitto says 0x81",
    "publishing.aliases_of_the_broker.v5": (
        "3.3.2.3.4: a client that allows topic aliases may get them; this Mosquitto sets none"
    ),
    "publishing.user_property_that_is_not_utf8.v5": _TELLS_WHY,
    **_both("publishing.topic_with_control_character", _UNICODE),
    **_both("publishing.topic_with_non_character", _UNICODE),
    "publishing.content_type_that_is_not_utf8.v5": _TELLS_WHY,
    "publishing.qos_2_that_expires_is_completed.v5": _NOBODY,
    "sessions.qos_1_expired_when_sent_again.v5": _SENT,
    "sessions.qos_2_expired_when_sent_again.v5": _SENT,
    "sessions.puback_for_a_message_of_qos_2.v5": _TELLS_WHY,
    "sessions.puback_behind_pubrec.v5": _TELLS_WHY,
    "sessions.pubrec_for_a_message_of_qos_1.v5": _TELLS_WHY,
    "sessions.pubcomp_before_pubrec.v5": _TELLS_WHY,
    "subscribing.without_filters.v5": f"3.8.3: {_PROTOCOL_ERROR}",
    "subscribing.unsubscribe_without_filters.v5": f"3.10.3: {_PROTOCOL_ERROR}",
    "subscribing.qos_3.v5": f"3.8.3.1: {_PROTOCOL_ERROR}",
    "subscribing.retain_handling_3.v5": f"3.8.3.1: {_PROTOCOL_ERROR}",
    "subscribing.identifier_0.v5": f"3.8.2.1.2: {_PROTOCOL_ERROR}",
    "subscribing.identifier_twice.v5": _TELLS_WHY,
    "subscribing.packet_id_0.v5": _ID_0,
    "subscribing.unsubscribe_with_packet_id_0.v5": _ID_0,
    "subscribing.filter_empty.v5": (
        "MQTT-4.7.3-1: an empty filter can be read and must not be sent: 0x82, not 0x81"
    ),
    "subscribing.no_local_and_an_overlapping_subscription.v5": (
        "3.8.3.1: no-local is an option of one subscription; Mosquitto lets it silence the others"
    ),
    "subscribing.options_are_replaced.v5": (
        "MQTT-3.8.4-3: the new subscription has no no-local; Mosquitto keeps the old one's"
    ),
    "subscribing.overlapping_is_one_message_at_the_highest_qos.v3": (
        "MQTT-3.3.5-1 of 3.1.1: the highest QoS of all that match; Mosquitto takes the first"
    ),
    "subscribing.overlapping_count.v5": _ONE_COPY,
    "subscribing.overlapping_identifiers.v5": _ONE_COPY,
    "subscribing.overlapping_and_queued.v5": _ONE_COPY,
    "subscribing.shared_and_plain.v3": _TWO_RECEIVERS,
    "subscribing.two_groups.v3": _TWO_RECEIVERS,
    **_both(
        "subscribing.shared_gets_no_retained_messages",
        "4.8.2: retained messages are not sent for shared subscriptions; Mosquitto sends them",
    ),
    "subscribing.shared_with_no_local.v5": "MQTT-3.8.3-4: a protocol error; Mosquitto grants it",
    **_both("subscribing.filter_share_without_filter", _SHARE),
    **_both("subscribing.filter_share_with_empty_filter", _SHARE),
    **_both("subscribing.filter_share_without_group", _SHARE),
    **_both("subscribing.filter_share_group_with_plus", _SHARE),
    "subscribing.filter_share_group_with_hash.v5": (
        "MQTT-4.8.2-2: it can be read and must not be sent: 0x82; Mosquitto says 0x81"
    ),
    **_both(
        "subscribing.filter_only_share",
        "no shared subscription (MQTT-4.8.2-1) but a name the broker reserves: refused with 0x8F"
        " (3.9.3), and the connection goes on",
    ),
    "wills.published_on_takeover.v5": _TAKEN_OVER,
    **_both("wills.published_on_takeover_of_a_kept_session", _WILL_ON_TAKEOVER),
    "wills.published_after_silence.v5": _TELLS_WHY,
    "wills.disconnect_with_an_error.v5": (
        "MQTT-3.1.2-8, MQTT-3.14.4-3: only reason 0x00 discards the will; Mosquitto does it for all"
        " but 0x04"
    ),
    "wills.delayed_beyond_the_session.v5": _WILL_WITH_SESSION,
    "wills.delayed_and_the_session_is_ended.v5": _WILL_WITH_SESSION,
}
