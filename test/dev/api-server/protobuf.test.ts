import { describe, expect, it } from 'vitest';
import { decodeProtobuf } from '../../../src/dev/api-server/protobuf.ts';

const field = (number: number, content: string | Buffer): Buffer => {
  const bytes = Buffer.from(content);
  return Buffer.concat([Buffer.from([number * 8 + 2, bytes.length]), bytes]);
};
const number = (at: number, value: number): Buffer => Buffer.from([at * 8, value]);
const entry = (key: string, value: string): Buffer =>
  Buffer.concat([field(1, key), field(2, value)]);
const message = (apiVersion: string, kind: string, ...fields: Buffer[]): Buffer =>
  Buffer.concat([
    Buffer.from('k8s\0'),
    field(1, Buffer.concat([field(1, apiVersion), field(2, kind)])),
    field(2, Buffer.concat(fields)),
    field(3, ''),
    field(4, ''),
  ]);
const metadata = (...more: Buffer[]): Buffer =>
  field(1, Buffer.concat([field(1, 'made'), field(2, ''), field(3, 'app'), ...more]));

describe("bodies in Kubernetes' protobuf", () => {
  it('are objects without what was left empty', () => {
    const body = message(
      'v1',
      'ConfigMap',
      // A time that was never set is an empty message.
      metadata(number(7, 0), field(8, ''), field(11, entry('x', 'y'))),
      field(2, entry('a', 'b')),
      field(2, entry('__proto__', 'c')),
      field(3, entry('d', '\u0000')),
      number(4, 0),
    );
    const decoded = decodeProtobuf(body) as { data: object };
    expect(decoded).toMatchObject({
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name: 'made', namespace: 'app', labels: { x: 'y' } },
      binaryData: { d: 'AA==' },
      immutable: false,
    });
    expect(JSON.stringify(decoded.data)).toBe('{"a":"b","__proto__":"c"}');
    expect(Object.keys((decoded as { metadata?: object }).metadata ?? {})).toEqual([
      'name',
      'namespace',
      'labels',
    ]);
  });

  it('have zeros that say something', () => {
    const options = message('v1', 'DeleteOptions', number(1, 0), field(5, 'All'));
    expect(decodeProtobuf(options)).toMatchObject({ gracePeriodSeconds: 0, dryRun: ['All'] });
    const minus = Buffer.from([16, 0xfb, ...(Array(8).fill(0xff) as number[]), 1]);
    const low = message('scheduling.k8s.io/v1', 'PriorityClass', metadata(), minus);
    expect(decodeProtobuf(low)).toMatchObject({ value: -5 });
  });

  it.each([
    ['another kind', message('v1', 'Pod', metadata()), /Pod in protobuf is not supported/],
    ['a field that would be lost', message('v1', 'Secret', field(9, 'x')), /field 9 of Secret/],
    ['no envelope', Buffer.from('{"kind":"x"}'), /does not begin/],
    ['half a field', message('v1', 'Secret', metadata()).subarray(0, 15), /ends in the middle/],
    ['a number for a text', message('v1', 'Secret', number(3, 1)), /Secret\.type is a number/],
    ['a text for a number', message('v1', 'Secret', field(5, 'x')), /is not a number/],
    ['an endless number', message('v1', 'Secret', Buffer.alloc(30, 0xff)), /too long/],
    ['a group', message('v1', 'Secret', Buffer.from([3])), /unknown type/],
  ])('are refused when they are %s', (_what, body, why) => {
    expect(() => decodeProtobuf(body)).toThrow(why);
  });
});
