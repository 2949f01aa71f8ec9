import { redact } from '../../base/index.ts';

const HIDDEN = '***';
/** Of annotations, variables and settings: what such a name has for a value nobody else is to know. */
const SECRET_NAME =
  /(passw(or)?d|passphrase|secret|token|credentials?|private_?key|(access|account|api|encryption|storage|shared|sse|customer)_?-?key(_?id)?|sas)$/i;
/** These only name a Secret, or say where in one something is. */
const ONLY_NAMES =
  /^(secretName|secret|credential|serviceAccountToken|automountServiceAccountToken)$/;
/**
 * `password=x`, `--secret-key x`, `token: x`, also quoted as in JSON. What may stand between is bounded everywhere: a text that nearly looks like
 * a secret takes no longer than any other one.
 */
const ASSIGNED =
  /((?:passw(?:or)?d|passphrase|secret[\w-]{0,20}key|access[\w-]{0,20}key(?:[_-]?id)?|account[\w-]{0,20}key|api[_-]?key|encryption[\w-]{0,20}key|client[_-]?secret|token)["']?[ \t]{0,4}[=:][ \t]{0,4}["']?)([^\s"',;&]+)/gi;
const FLAG =
  /(--?[\w-]{0,30}(?:password|secret|token|access-?key)[\w-]{0,30}(?:=|[ \t]{1,4}))([^\s"',;]+)/gi;
const PATTERNS: readonly (readonly [RegExp, string])[] = [
  [
    /-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^]*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|$)/g,
    HIDDEN,
  ],
  [/\b(Bearer|Basic)[ \t]{1,4}[A-Za-z0-9+/=._~-]{8,}/g, `$1 ${HIDDEN}`],
  // Tokens of ServiceAccounts, and others of their kind.
  [/\beyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{4,4096}\.[A-Za-z0-9_-]*/g, HIDDEN],
  [/\b(?:AKIA|ASIA)[A-Z0-9]{16}\b/g, HIDDEN],
  [/(\b[a-z][a-z0-9+.-]{1,20}:\/\/)[^/\s@"']{1,500}@/gi, `$1${HIDDEN}@`],
  [
    /([?&](?:X-Amz-(?:Signature|Credential|Security-Token)|X-Goog-Signature|AWSAccessKeyId|Signature|sig)=)[^&\s"']+/gi,
    `$1${HIDDEN}`,
  ],
  [FLAG, `$1${HIDDEN}`],
  [ASSIGNED, `$1${HIDDEN}`],
];
/** `kubectl apply` leaves the whole object there once more, as text. */
const DROPPED_ANNOTATIONS = ['kubectl.kubernetes.io/last-applied-configuration'];

/** Text of logs and messages as it may be given to a stranger. What looks like a secret is hidden, rather too much than too little. */
export function textWithoutSecrets(text: string): string {
  let shown = redact(text);
  for (const [pattern, replacement] of PATTERNS) shown = shown.replaceAll(pattern, replacement);
  return shown;
}

/** An object of the API server as it may be given to a stranger: without values that look like secrets, and without managedFields. */
export function objectWithoutSecrets(object: unknown): unknown {
  return shown(object, '');
}

function shown(value: unknown, name: string): unknown {
  if (typeof value === 'string') {
    return SECRET_NAME.test(name) && !ONLY_NAMES.test(name) ? HIDDEN : textWithoutSecrets(value);
  }
  if (Array.isArray(value)) return value.map((each) => shown(each, name));
  if (typeof value !== 'object' || value === null) return value;
  const fields = value as Readonly<Record<string, unknown>>;
  // A variable of a container: its name is a value itself.
  const isVariable = typeof fields.name === 'string' && typeof fields.value === 'string';
  const entries = Object.entries(fields).flatMap(([key, inner]) => {
    if (key === 'managedFields' || DROPPED_ANNOTATIONS.includes(key)) return [];
    if (isVariable && key === 'value') return [[key, shown(inner, fields.name as string)]];
    // Where in the Secret: `{ name, key }` of credentials and references.
    if (isReference(fields, key)) return [[key, inner]];
    return [[key, shown(inner, key)]];
  });
  return Object.fromEntries(entries);
}

const isReference = (fields: Readonly<Record<string, unknown>>, key: string): boolean =>
  (key === 'key' || key === 'name') &&
  Object.keys(fields).every((each) => ['key', 'name', 'optional'].includes(each));
