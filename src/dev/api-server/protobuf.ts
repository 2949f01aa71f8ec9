import {
  define,
  lookup,
  type ProtobufField,
  protobufFields,
  type ProtobufValue,
} from '../../base/index.ts';
import { ApiError } from './api-error.ts';

/**
 * kubectl sends a few requests only in protobuf (`kubectl create namespace`, `auth can-i`). Answers
 * are JSON, which kubectl accepts too. The field numbers are from Kubernetes' generated.proto
 * files.
 */
export const PROTOBUF_TYPE = 'application/vnd.kubernetes.protobuf';

interface Field {
  readonly name: string;
  readonly type: 'string' | 'bool' | 'int' | 'time' | 'strings' | 'secrets' | 'answer' | Message;
  readonly isList?: boolean;
  /** A pointer in Go: false, 0 and an empty message are values. */
  readonly isOptional?: boolean;
}
type Message = Readonly<Record<number, Field>>;

const string = (name: string): Field => ({ name, type: 'string' });
const optional = (name: string, type: Field['type']): Field => ({ name, type, isOptional: true });

const OWNER: Message = {
  1: string('kind'),
  3: string('name'),
  4: string('uid'),
  5: string('apiVersion'),
  6: optional('controller', 'bool'),
  7: optional('blockOwnerDeletion', 'bool'),
};
const METADATA: Field = {
  name: 'metadata',
  type: {
    1: string('name'),
    2: string('generateName'),
    3: string('namespace'),
    4: string('selfLink'),
    5: string('uid'),
    6: string('resourceVersion'),
    7: { name: 'generation', type: 'int' },
    8: { name: 'creationTimestamp', type: 'time' },
    9: { name: 'deletionTimestamp', type: 'time' },
    10: optional('deletionGracePeriodSeconds', 'int'),
    11: { name: 'labels', type: 'strings' },
    12: { name: 'annotations', type: 'strings' },
    13: { name: 'ownerReferences', type: OWNER, isList: true },
    14: { ...string('finalizers'), isList: true },
  },
};
const NAMED: Message = { 1: string('name') };
/** Set by the server. */
const ANSWER: Field = { name: 'status', type: 'answer' };

const KINDS: Readonly<Record<string, Message>> = {
  'v1 Namespace': {
    1: METADATA,
    2: { name: 'spec', type: { 1: { ...string('finalizers'), isList: true } } },
    3: { name: 'status', type: { 1: string('phase') } },
  },
  'v1 ConfigMap': {
    1: METADATA,
    2: { name: 'data', type: 'strings' },
    3: { name: 'binaryData', type: 'secrets' },
    4: optional('immutable', 'bool'),
  },
  'v1 Secret': {
    1: METADATA,
    2: { name: 'data', type: 'secrets' },
    3: string('type'),
    4: { name: 'stringData', type: 'strings' },
    5: optional('immutable', 'bool'),
  },
  'v1 ServiceAccount': {
    1: METADATA,
    3: { name: 'imagePullSecrets', type: NAMED, isList: true },
    4: optional('automountServiceAccountToken', 'bool'),
  },
  'scheduling.k8s.io/v1 PriorityClass': {
    1: METADATA,
    2: optional('value', 'int'),
    3: { name: 'globalDefault', type: 'bool' },
    4: string('description'),
    5: optional('preemptionPolicy', 'string'),
  },
  'meta.k8s.io/v1 DeleteOptions': {
    1: optional('gracePeriodSeconds', 'int'),
    2: {
      name: 'preconditions',
      type: { 1: optional('uid', 'string'), 2: optional('resourceVersion', 'string') },
    },
    3: optional('orphanDependents', 'bool'),
    4: optional('propagationPolicy', 'string'),
    5: { ...string('dryRun'), isList: true },
  },
  'authorization.k8s.io/v1 SelfSubjectAccessReview': {
    1: METADATA,
    2: {
      name: 'spec',
      type: {
        1: optional('resourceAttributes', {
          1: string('namespace'),
          2: string('verb'),
          3: string('group'),
          4: string('version'),
          5: string('resource'),
          6: string('subresource'),
          7: string('name'),
        }),
        2: optional('nonResourceAttributes', { 1: string('path'), 2: string('verb') }),
      },
    },
    3: ANSWER,
  },
  'authorization.k8s.io/v1 SelfSubjectRulesReview': {
    1: METADATA,
    2: { name: 'spec', type: { 1: string('namespace') } },
    3: ANSWER,
  },
  'authentication.k8s.io/v1 SelfSubjectReview': {
    1: METADATA,
    2: ANSWER,
  },
};

const MAGIC = Buffer.from('k8s\0');

/** Decodes an object in Kubernetes' protobuf envelope. Throws {@link ApiError}. */
export function decodeProtobuf(body: Buffer): object {
  if (!body.subarray(0, MAGIC.length).equals(MAGIC)) {
    throw new ApiError(400, 'BadRequest', "the body does not begin like Kubernetes' protobuf");
  }
  const envelope = fieldsOf(body.subarray(MAGIC.length));
  let apiVersion = '';
  let kind = '';
  let raw = Buffer.alloc(0);
  for (const { number, value } of envelope) {
    if (number === 1) {
      for (const part of fieldsOf(bytesOf(value, 'typeMeta'))) {
        const said = bytesOf(part.value, 'typeMeta').toString('utf8');
        if (part.number === 1) apiVersion = said;
        else if (part.number === 2) kind = said;
      }
    } else if (number === 2) raw = bytesOf(value, 'raw');
  }
  // Options of a deletion carry the version of the deleted object.
  const known = lookup(
    KINDS,
    `${kind === 'DeleteOptions' ? 'meta.k8s.io/v1' : apiVersion} ${kind}`,
  );
  if (!known) {
    const text = `${kind || 'this'} in protobuf is not supported here; send it as JSON, as kubectl apply does`;
    throw new ApiError(415, 'UnsupportedMediaType', text);
  }
  return { apiVersion, kind, ...decode(raw, known, kind) };
}

type Decoded = Record<string, unknown>;

function decode(bytes: Buffer, message: Message, what: string): Decoded {
  const object: Decoded = {};
  for (const { number, value } of fieldsOf(bytes)) {
    const field = message[number];
    if (!field) {
      // Without an error, part of the object would be lost silently.
      const text = `field ${number} of ${what} in protobuf is not supported here; send it as JSON`;
      throw new ApiError(415, 'UnsupportedMediaType', text);
    }
    put(object, field, value, `${what}.${field.name}`);
  }
  return object;
}

function put(object: Decoded, field: Field, value: ProtobufValue, what: string): void {
  const { name, type, isList, isOptional } = field;
  if (type === 'answer') return;
  if (type === 'strings' || type === 'secrets') {
    const [key, bytes] = entryOf(bytesOf(value, what), what);
    const entries = (lookup(object, name) ?? {}) as Decoded;
    define(object, name, entries);
    define(entries, key, bytes.toString(type === 'strings' ? 'utf8' : 'base64'));
    return;
  }
  const decoded = valueOf(type, value, what);
  if (isList) {
    const list = (lookup(object, name) ?? []) as unknown[];
    define(object, name, list);
    list.push(decoded);
    return;
  }
  // Go writes every field that is not a pointer, even if it is empty.
  if (isOptional || !isEmpty(decoded)) define(object, name, decoded);
}

const isEmpty = (value: unknown): boolean =>
  value === '' ||
  value === 0 ||
  value === false ||
  value === undefined ||
  (typeof value === 'object' && value !== null && Object.keys(value).length === 0);

function valueOf(
  type: Exclude<Field['type'], 'strings' | 'secrets' | 'answer'>,
  value: ProtobufValue,
  what: string,
): unknown {
  switch (type) {
    case 'string':
      return bytesOf(value, what).toString('utf8');
    case 'bool':
      return numberOf(value, what) !== 0n;
    case 'int':
      return Number(BigInt.asIntN(64, numberOf(value, what)));
    case 'time':
      return timeOf(bytesOf(value, what), what);
    default:
      return decode(bytesOf(value, what), type, what);
  }
}

function timeOf(bytes: Buffer, what: string): string | undefined {
  for (const { number, value } of fieldsOf(bytes)) {
    if (number !== 1) continue;
    const seconds = Number(BigInt.asIntN(64, numberOf(value, what)));
    const time = new Date(seconds * 1000);
    if (Number.isNaN(time.getTime())) throw malformed(`${what} is not a time`);
    return time.toISOString().replace('.000Z', 'Z');
  }
  return undefined;
}

function entryOf(bytes: Buffer, what: string): [key: string, value: Buffer] {
  let key = '';
  let found: Buffer = Buffer.alloc(0);
  for (const { number, value } of fieldsOf(bytes)) {
    if (number === 1) key = bytesOf(value, what).toString('utf8');
    else if (number === 2) found = bytesOf(value, what);
  }
  return [key, found];
}

const malformed = (why: string): ApiError =>
  new ApiError(400, 'BadRequest', `the body is not valid protobuf: ${why}`);

const fieldsOf = (bytes: Buffer): Generator<ProtobufField> => protobufFields(bytes, malformed);

function bytesOf(value: ProtobufValue, what: string): Buffer<ArrayBuffer> {
  if (typeof value === 'bigint') throw malformed(`${what} is a number`);
  return value as Buffer<ArrayBuffer>;
}

function numberOf(value: ProtobufValue, what: string): bigint {
  if (typeof value !== 'bigint') throw malformed(`${what} is not a number`);
  return value;
}
