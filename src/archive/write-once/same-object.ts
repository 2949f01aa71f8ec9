import { createHash } from 'node:crypto';
import type { Body } from '../../blob/index.ts';

/** Whether two objects have the same bytes. Reads both in turn and keeps neither. */
export const isSameObject = async (a: Body, b: Body): Promise<boolean> =>
  (await digestOf(a)) === (await digestOf(b));

async function digestOf(body: Body): Promise<string> {
  const hash = createHash('sha256');
  for await (const piece of body) hash.update(piece);
  return hash.digest('hex');
}
