import { CodedError, parseJsonExact } from '../../base/index.ts';
import { PATCH_FAILED, type PatchOperation } from '../../kube/index.ts';

/** A step as a rule writes it: every value is a text. */
export interface WrittenOperation {
  readonly operation: string;
  readonly from: string;
  readonly path: string;
  readonly value: string;
}

/**
 * The step that is meant. Velero (internal/resourcemodifiers/json_patch.go, ToString) writes its
 * parts into a text that it reads as JSON: what is between quotes has JSON's escapes, and what has
 * none must be JSON. Throws `PATCH_FAILED` where that is none.
 */
export function operationOf({ operation, from, path, value }: WrittenOperation): PatchOperation {
  return {
    // Velero takes `Add` when it checks a rule, and fails on every item then.
    op: operation.toLowerCase(),
    from: parsed(`"${from}"`) as string,
    path: parsed(`"${path}"`) as string,
    value: valueOf(value),
  };
}

function valueOf(value: string): unknown {
  const isQuoted = value.startsWith('"') && value.endsWith('"');
  if (isQuoted) return parsed(`"${value.replace(/^"/, '').replace(/"$/, '')}"`);
  return parsed(isRaw(value) ? value : `"${value}"`);
}

const isRaw = (value: string): boolean =>
  value === 'null' || /^(true|false)$/i.test(value) || /^[{[]/.test(value) || isGoFloat(value);

/** What strconv.ParseFloat takes: more than JSON does. */
function isGoFloat(text: string): boolean {
  if (/^[+-]?(inf|infinity)$/i.test(text) || /^nan$/i.test(text)) return true;
  if (/^[+-]?0x_?([0-9a-f_]+\.?[0-9a-f_]*|\.[0-9a-f_]+)p[+-]?\d+$/i.test(text)) return true;
  const isDecimal = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text);
  return isDecimal && Number.isFinite(Number(text));
}

function parsed(text: string): unknown {
  try {
    const list = parseJsonExact(`[${text}]`) as unknown[];
    // Commas in it would be more parts of the text.
    if (list.length === 1) return list[0];
  } catch (cause) {
    throw new CodedError(PATCH_FAILED, 'error in decoding json patch invalid state detected', {
      cause,
    });
  }
  throw new CodedError(PATCH_FAILED, 'error in decoding json patch invalid state detected');
}
