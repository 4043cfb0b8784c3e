//! The word lists behind the cues, and nothing else: one place to add a word or a language.
//!
//! Written as text and turned into a table once, because one look-up per word is what keeps long batches fast.

use std::sync::LazyLock;

use super::cues::Cues;
use super::tokens::Map;

const WORDS: &[(Cues, &str)] = &[
    (
        Cues::DECISION,
        "decided decision decide chose chosen choose agreed approved rejected reject rejects settled picked adopted \
         adopt discarded abandoned dropped ruled opted beschlossen entschieden décidé decidido решили",
    ),
    (
        Cues::RULE,
        "must never always rule forbidden prohibited mandatory required requirement requirements allergic allergy \
         mustn't shouldn't deadline constraint cannot can't muss müssen darf dürfen niemals jamais doit interdit \
         nunca debe prohibido нельзя никогда должен должны",
    ),
    (
        Cues::NEGATION,
        "not no isn't aren't won't doesn't didn't wasn't cannot can't don't nor neither without nothing nicht kein \
         keine keinen pas sin не",
    ),
    (
        Cues::CORRECTION,
        "correction corrected instead replaced replacing replaces supersedes superseded updated changed moved \
         postponed rescheduled raised lowered increased decreased reduced revised renamed actually stattdessen \
         geändert verschoben korrektur corrigé corrección",
    ),
    (
        Cues::PROMISE,
        "promise promised promises owe owes todo versprochen promis prometí",
    ),
    (
        Cues::OPEN,
        "unresolved unclear undecided tbd pending outstanding blocked blocker unanswered",
    ),
    (Cues::REQUEST, "please bitte"),
    (
        Cues::ERROR,
        "error errors failed fails fail failure panicked exception traceback crash crashed crashes bug broken denied \
         timeout overflow cause caused because",
    ),
    (Cues::HEDGE, "would maybe perhaps might modest usual"),
    (
        Cues::THANKS,
        "thanks thank ok okay great good fine noted understood sure yes done hello hi perfect welcome danke merci \
         gracias",
    ),
    (
        Cues::DONE,
        "done fixed resolved answered sent delivered completed finished closed solved rebuilt",
    ),
    (
        Cues::RESULT,
        "fixed resolved answered completed closed solved rebuilt found takes passes pass shows confirmed works \
         unchanged added",
    ),
    (
        Cues::ROLE,
        "client contact owner lead manager boss doctor teacher guest supplier vendor reviewer maintainer customer \
         colleague partner",
    ),
    // Verbs that open a request. The list is for English, where the form of the verb does not show it.
    (
        Cues::IMPERATIVE,
        "add analyse analyze answer apply ask build calculate change check clean collect compare convert correct \
         count create delete deploy describe do draft draw explain extract find fix generate give help implement \
         improve install keep let's list look make mention merge move open plan prepare print put read rebuild \
         refactor remember remove rename repeat replace rerun review rewrite run search send set share show solve \
         sort start stop suggest summarise summarize take tell test translate try turn update use verify write",
    ),
    (Cues::RULING, "keep avoid ensure leave stick remember don't"),
    // Words that stand before the one that counts: "Good, now please put …".
    (
        Cues::LEAD,
        "please then now so and but also next good ok okay thanks great first finally yes no well",
    ),
    (
        Cues::POLITE,
        "glad hear lot much very point you're you’re anytime gern gerne",
    ),
    (
        Cues::STOP,
        "the an and or but if of still too very using used to in on at by for with from into about as than then so it its is are was were be \
         been being am do does did has have had will would can could should may might must shall this that these \
         those there here he she they we you me my our your his her their them us what which who when where why how \
         not no yes all any some each every more most less only also just now new old up out over again please ok \
         good i'll we'll it's let's don't one two per instead correction changed moved replaced replacing updated \
         raised noted actually until gave equals between roughly take plus minus because without after before der \
         die das und ist le la les et el los",
    ),
    // Nouns that a number names: "station 7".
    (
        Cues::LABEL,
        "station week step page version room note item ticket issue chapter section line port phase number table \
         figure option level site case test run round part group team format pr column row index id code gate stage \
         sample batch floor node day plot box",
    ),
    (
        Cues::MONTH,
        "january february march april may june july august september october november december jan feb apr jun jul \
         aug sep sept oct nov dec januar februar märz mai juni juli oktober dezember",
    ),
    (
        Cues::WEEKDAY,
        "monday tuesday wednesday thursday friday saturday sunday tomorrow today",
    ),
    (Cues::NEGATION.with(Cues::CORRECTION), "nevermind scratch"),
    (Cues::STOP, "still too very been using used"),
];

/// Two words in a row, joined by `+`.
const PAIRS: &[(Cues, &str)] = &[
    (
        Cues::DECISION,
        "we+use we+keep we+take we+picked we'll+use we'll+keep we'll+take gave+up ruled+out are+out is+out go+with \
         going+with i+prefer we+prefer use+a use+the",
    ),
    (
        Cues::RULE,
        "must+not should+not may+not do+not at+most at+least have+to has+to not+allowed more+than less+than \
         has+stay must+stay and+don't but+don't so+don't please+don't we+don't you+don't",
    ),
    (
        Cues::NEGATION,
        "must+not should+not may+not do+not no+longer",
    ),
    (
        Cues::CORRECTION,
        "no+longer any+longer not+anymore is+now are+now ist+jetzt sind+jetzt now+takes now+is now+are now+due the+new \
         rather+than scratch+that new+date new+value new+limit",
    ),
    (
        Cues::PROMISE,
        "i'll+send i'll+deliver i'll+call will+send will+deliver will+call we'll+send we'll+deliver we'll+call \
         follow+up",
    ),
    (
        Cues::OPEN,
        "open+question open+questions open+point open+points open+issue still+open still+unknown still+missing \
         still+fails still+need still+needs remains+open not+yet",
    ),
    (
        Cues::REQUEST,
        "can+you could+you i+want i+need we+want we+need let+us what+does what+do what+is how+does how+do how+can \
         how+to why+does why+do why+is why+are who+is",
    ),
    (Cues::HEDGE, "i+think"),
    (Cues::RESULT, "turned+out"),
];

/// Cues of languages that show them inside longer runs of letters, or that have no spaces: looked up as substrings,
/// parted here by `|`.
const ABROAD: &[(Cues, &str)] = &[
    (
        Cues::RULE,
        "必须|必須|务必|務必|禁止|不要|不能|不得|只能|过敏|過敏|アレルギー|ないでください|반드시|금지|알레르기|하지 마|ห้าม|ต้อง|ไม่ใส่|แพ้|يجب|ممنوع|חייב|אסור|मत |ज़रूर",
    ),
    (
        Cues::DECISION,
        "决定|決定|采用|採用|选择|결정|선택|ตัดสินใจ|قررنا|החלטנו|तय किया",
    ),
    (
        Cues::CORRECTION,
        "更正|增加到|减少到|降到|改为|改成|改為|修正|変更|訂正|변경|정정|تصحيح|بدلا|תיקון|במקום|เปลี่ยน|แก้ไข|вместо|исправ",
    ),
    (Cues::NEGATION, "不|没|ない|ません|않|없|ليس|ไม่|नहीं"),
    (
        Cues::REQUEST,
        "请|請|ください|お願い|주세요|กรุณา|कृपया|пожалуйста|من فضلك|בבקשה|吗|ขอ",
    ),
    (Cues::OPEN, "待定|未定|未解决|未解決|미정"),
    (
        Cues::PROMISE,
        "承诺|承諾|答应|約束|약속|สัญญา|обещал|أعدك|הבטחתי",
    ),
];

pub(super) const ORDERS: &str = "ignore |disregard|instruction|system prompt|you must|you are now|new task|do not tell|\
                                 end of transcript|assistant:|system]|system:|forget |override";

pub(super) const SECRETS: &str =
    "secret|token|passw|api_key|apikey|access_key|private key|authorization|bearer |credential";

static WORD_TABLE: LazyLock<Map<&'static str, Cues>> = LazyLock::new(|| {
    let mut table: Map<&'static str, Cues> = Map::default();
    for (cue, words) in WORDS {
        for word in words.split_ascii_whitespace() {
            table.entry(word).or_default().add(*cue);
        }
    }
    table
});

static PAIR_TABLE: LazyLock<Map<(&'static str, &'static str), Cues>> = LazyLock::new(|| {
    let mut table: Map<(&'static str, &'static str), Cues> = Map::default();
    for (cue, pairs) in PAIRS {
        for pair in pairs
            .split_ascii_whitespace()
            .filter_map(|pair| pair.split_once('+'))
        {
            table.entry(pair).or_default().add(*cue);
        }
    }
    table
});

/// `word` in small letters.
pub(super) fn word(word: &str) -> Cues {
    WORD_TABLE.get(word).copied().unwrap_or_default()
}

pub(super) fn pair(first: &str, second: &str) -> Cues {
    PAIR_TABLE
        .get(&(first, second))
        .copied()
        .unwrap_or_default()
}

pub(super) fn abroad(text: &str) -> Cues {
    let mut cues = Cues::default();
    for (cue, signs) in ABROAD {
        if signs.split('|').any(|sign| text.contains(sign)) {
            cues.add(*cue);
        }
    }
    cues
}

/// `signs` are parted by `|`.
pub(super) fn contains_any(text: &str, signs: &str) -> bool {
    let low = text.to_lowercase();
    signs.split('|').any(|sign| low.contains(sign))
}
