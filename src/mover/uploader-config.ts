import { CodedError, lookup } from '../base/index.ts';
import type { KeptExtras } from '../uploader/index.ts';

/** A count in `uploaderSettings` or `dataMoverConfig`. Throws `BAD_MOVER_CONFIG`. */
export function countOf(config: Readonly<Record<string, string>>, key: string): number | undefined {
  const text = lookup(config, key);
  if (text === undefined) return undefined;
  const count = Number(text);
  if (!Number.isInteger(count)) throw badConfig(key, text, 'a whole number');
  return count > 0 ? Math.min(count, 64) : undefined;
}

/** A flag in the same settings; false by default. Throws `BAD_MOVER_CONFIG`. */
export function flagOf(config: Readonly<Record<string, string>>, key: string): boolean {
  const text = lookup(config, key) ?? 'false';
  if (/^(1|t|T|TRUE|true|True)$/.test(text)) return true;
  if (/^(0|f|F|FALSE|false|False)$/.test(text)) return false;
  throw badConfig(key, text, 'true or false');
}

/** Extra attributes that a backup keeps, or a restore sets. Throws `BAD_MOVER_CONFIG`. */
export const extrasOf = (config: Readonly<Record<string, string>>): KeptExtras => ({
  xattrs: !flagOf(config, 'longshore.noXattrs'),
  links: !flagOf(config, 'longshore.noHardLinks'),
});

const badConfig = (key: string, text: string, wanted: string): CodedError =>
  new CodedError(
    'BAD_MOVER_CONFIG',
    `failed to get uploader config: ${key} is "${text}", not ${wanted}`,
  );
