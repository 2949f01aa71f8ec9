import { redact } from '../../base/index.ts';

const HIDDEN = '***';
/** Names of annotations, variables and settings with secret values. */
const SECRET_NAME =
  /(passw(or)?d|passphrase|(^|[_.-])(pass|pwd|auth)|secret|token|credentials?|(access|account|api|client|customer|encryption|master|private|root|secret|shared|signing|sse|storage)[_-]?key([_-]?(id|data|base64))?|sas)$/i;
/** These fields only name a Secret, or a place in it. */
const ONLY_NAMES =
  /^(secretName|secret|credential|serviceAccountToken|automountServiceAccountToken)$/;
/**
 * Names before `=` or `:` in texts. All repetitions here and below are bounded, so that near
 * matches do not take longer than other texts.
 */
const ASSIGNED_NAME = String.raw`(?:passw(?:or)?d|passphrase|secret[\w-]{0,20}key|(?:access|account|encryption)[\w-]{0,20}key(?:[_-]?id)?|(?:api|client|customer|master|private|root|signing)[_-]?key(?:[_-]?data)?|client[_-]?secret|token|(?<=["'])auth)`;
const BETWEEN = String.raw`\\{0,7}["']?[ \t]{0,4}[=:][ \t]{0,4}`;
/**
 * A setting at the start of a line. Its value is the rest of the line, or the indented text below
 * it. For a YAML block, all of its lines.
 */
const SETTING = new RegExp(
  String.raw`(^([ \t]{0,64})(?:- )?["']?[\w.-]{0,64}?${ASSIGNED_NAME}${BETWEEN})(?:[|>][+-]?\d?[ \t]{0,4}(?:\n(?:\2[ \t][^\n]*|[ \t]*(?=\n)))+|[ \t]{0,4}\n[ \t]{1,64}[^\n]+|[^\s"'][^\n]*)`,
  'gim',
);
/** `password=x`, `token: x`, also in quotes. Nested JSON has backslashes before quotes. */
const ASSIGNED = new RegExp(
  String.raw`(${ASSIGNED_NAME}${BETWEEN})(?:(\\{0,7}["'])[^\n]{0,1024}?(?<!\\)\2|\\{0,7}["']?[^\s"']+)`,
  'gi',
);
const FLAG =
  /(--?[\w-]{0,30}(?:password|secret|token|access-?key)[\w-]{0,30}(?:=|[ \t]{1,4}))(?:(["'])[^\n]{0,1024}?(?<!\\)\2|["']?[^\s"']+)/gi;
/** The value is the next argument. */
const LONE_FLAG = /^--?[\w-]*(?:password|secret|token|access-?key)[\w-]*$/i;
const PATTERNS: readonly (readonly [RegExp, string])[] = [
  [
    /-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^]*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|$)/g,
    HIDDEN,
  ],
  [/\b(Bearer|Basic)[ \t]{1,4}[A-Za-z0-9+/=._~-]{8,}/g, `$1 ${HIDDEN}`],
  // Tokens of ServiceAccounts, and other JSON web tokens.
  [/\beyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{4,4096}\.[A-Za-z0-9_-]*/g, HIDDEN],
  [/\b(?:AKIA|ASIA)[A-Z0-9]{16}\b/g, HIDDEN],
  [/(\b[a-z][a-z0-9+.-]{1,20}:\/\/)[^/?#\s"']{1,500}@/gi, `$1${HIDDEN}@`],
  [
    /([?&](?:X-Amz-(?:Signature|Credential|Security-Token)|X-Goog-Signature|AWSAccessKeyId|Signature|sig)=)[^&\s"']+/gi,
    `$1${HIDDEN}`,
  ],
  [FLAG, `$1${HIDDEN}`],
  [SETTING, `$1${HIDDEN}`],
  [ASSIGNED, `$1${HIDDEN}`],
];
/** `kubectl apply` stores the whole object here again, as text. */
const DROPPED_ANNOTATIONS = ['kubectl.kubernetes.io/last-applied-configuration'];

/** Hides text in logs and messages that looks like a secret. In doubt the text is hidden. */
export function textWithoutSecrets(text: string): string {
  let shown = redact(text);
  for (const [pattern, replacement] of PATTERNS) shown = shown.replaceAll(pattern, replacement);
  return shown;
}

/** An object of the API server without values that look like secrets, and without managedFields. */
export function objectWithoutSecrets(object: unknown): unknown {
  return shown(object, '');
}

/** Annotations of a pod that contain the command of a hook. */
const HOOK_COMMAND = /^[a-z.]{0,40}hook[a-z.]{0,40}\.velero\.io\/(command|args)$/;
/** Variables of Longshore and Velero that hold no secret. All other variables may hold one. */
const PLAIN_VARIABLES =
  /^(NODE_NAME|POD_NAME|TZ|NODE_OPTIONS|LD_LIBRARY_PATH|GOMEMLIMIT|GOMAXPROCS|AWS_(DEFAULT_)?REGION|AWS_ROLE_ARN|(https?|no)_proxy|(VELERO|LONGSHORE|KUBERNETES)_\w+|\w+_CREDENTIALS(_FILE)?)$/i;
const PLAIN_VALUE = /^(true|false|\d{0,9}(\.\d{1,3})?([smh]|[KMG]i?B?)?)$/;

/** The program of a command, and the number of its arguments. Each argument may be a password. */
function commandShown(given: unknown): unknown {
  const words = wordsOf(given);
  const [program = ''] = words;
  const first = program.includes('=') ? HIDDEN : textWithoutSecrets(program);
  return words.length < 2 ? [first] : [first, `${HIDDEN} (${words.length - 1} more words)`];
}

function wordsOf(given: unknown): string[] {
  if (Array.isArray(given)) {
    return given.flatMap((each: unknown, at) =>
      at === 0 ? wordsOf(String(each)) : [String(each)],
    );
  }
  const text = String(given).trim();
  if (!text.startsWith('[')) return text.split(/\s+/);
  try {
    return wordsOf(JSON.parse(text));
  } catch {
    return [HIDDEN];
  }
}

const MODIFIERS = 'resourceModifierRules';
/** Keys of resource modifiers whose values select objects and fields. */
const RULE_KEYS =
  /^(version|resourceModifierRules|conditions|groupResource|resourceNameRegex|namespaces|patches|mergePatches|strategicPatches|operation|path|from)$/;

/**
 * Resource modifiers without the values that they set. Lines in an unusual form are hidden whole.
 */
function modifiersShown(text: string): string {
  /** Lines with more indentation belong to a hidden value. */
  let hiddenAt = Infinity;
  const lines = text.split('\n').flatMap((line) => {
    const indent = /^[ -]*/.exec(line)?.[0].length ?? 0;
    const isListed = line.trimStart().startsWith('- ');
    const start = line.length - line.trimStart().length;
    if (line.trim() === '') return [];
    if (start > hiddenAt || (start === hiddenAt && isListed)) return [];
    hiddenAt = Infinity;
    const [, key = '', value = ''] = /^[ -]*([\w.-]+):[ \t]*(.*)$/.exec(line) ?? [];
    const isPlain = !/^[|>{[&*!]/.test(value);
    if (RULE_KEYS.test(key) && isPlain) return [textWithoutSecrets(line)];
    if (key === '' && isListed && /^[ ]*- [\w.*-]+$/.test(line)) return [line];
    hiddenAt = indent;
    return [key === '' ? HIDDEN : `${line.slice(0, indent)}${key}: ${HIDDEN}`];
  });
  return lines.join('\n');
}

function shown(value: unknown, name: string): unknown {
  if (HOOK_COMMAND.test(name)) return commandShown(value);
  if (typeof value === 'string' && value.includes(MODIFIERS)) return modifiersShown(value);
  if (typeof value === 'string') {
    return SECRET_NAME.test(name) && !ONLY_NAMES.test(name) ? HIDDEN : textWithoutSecrets(value);
  }
  if (Array.isArray(value)) {
    return value.map((each: unknown, at) => {
      const before: unknown = value[at - 1];
      const isSecret = typeof each === 'string' && !each.startsWith('-');
      if (isSecret && typeof before === 'string' && LONE_FLAG.test(before)) return HIDDEN;
      return shown(each, name);
    });
  }
  if (typeof value !== 'object' || value === null) return value;
  const fields = value as Readonly<Record<string, unknown>>;
  // A variable of a container: its name is the value of the field `name`.
  const isVariable = typeof fields.name === 'string' && typeof fields.value === 'string';
  const entries = Object.entries(fields).flatMap(([key, inner]) => {
    if (key === 'managedFields' || DROPPED_ANNOTATIONS.includes(key)) return [];
    if (isVariable && key === 'value') return [[key, variableShown(fields)]];
    // A hook or a probe. Init containers of hooks have commands too.
    if (name === 'exec' && key === 'command') return [[key, commandShown(inner)]];
    if (name === HOOK_CONTAINERS && key === 'command') return [[key, commandShown(inner)]];
    if (name === HOOK_CONTAINERS && key === 'args') {
      return [[key, [`${HIDDEN} (${wordsOf(inner).length} words)`]]];
    }
    if (name === 'init' && key === 'initContainers') return [[key, shown(inner, HOOK_CONTAINERS)]];
    // The key within a Secret: `{ name, key }` of credentials and references.
    if (isReference(fields, key)) return [[key, inner]];
    return [[key, shown(inner, key)]];
  });
  return Object.fromEntries(entries);
}

/** Marks the init containers of a restore hook during the walk. */
const HOOK_CONTAINERS = 'initContainers of a hook';

function variableShown({ name, value }: Readonly<Record<string, unknown>>): unknown {
  const isPlain = PLAIN_VARIABLES.test(name as string) || PLAIN_VALUE.test(value as string);
  return isPlain ? shown(value, name as string) : HIDDEN;
}

const isReference = (fields: Readonly<Record<string, unknown>>, key: string): boolean =>
  (key === 'key' || key === 'name') &&
  Object.keys(fields).every((each) => ['key', 'name', 'optional'].includes(each));
