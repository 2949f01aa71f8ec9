import { describe, expect, it } from 'vitest';
import { bytesOf, objectFrom } from '../../../src/plugin/protocol/conversions.ts';

const through = (text: string): string =>
  String(bytesOf({ ...objectFrom(Buffer.from(text), 'the host sent as item') }));

describe('an object between a server and its plugins', () => {
  it('keeps the digits of its numbers, such as the time of a snapshot in nanoseconds', () => {
    const content = '{"metadata":{"name":"c"},"status":{"creationTime":1700000000123456789}}';
    expect(through(content)).toBe(content);
  });

  it('may be nested as deeply as the API server takes', () => {
    const depth = 9_000;
    const object = `{"metadata":{"name":"c"},"spec":${'['.repeat(depth)}${']'.repeat(depth)}}`;
    expect(through(object) === object).toBe(true);
  });
});
