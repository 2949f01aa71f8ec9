import { createHash } from 'node:crypto';

const LABEL_MAX = 63;
const KEPT = 57;

/** A label value that fits: longer ones are cut and end in their hash (Velero: pkg/label, GetValidName). */
export function validLabel(text: string): string {
  if (text.length <= LABEL_MAX) return text;
  const hash = createHash('sha256').update(text).digest('hex');
  return text.slice(0, KEPT) + hash.slice(0, LABEL_MAX - KEPT);
}
