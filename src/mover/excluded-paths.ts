import { CodedError, isCode, type Logger, messageOf, printable } from '../base/index.ts';
import { EXCLUDED_TAG, parseIgnorePattern } from '../snapshot/index.ts';

/**
 * Bounds for the rules of each place: characters of text, and number of rules. Every snapshot
 * stores all rules, and every entry of a volume is matched against them. Our choice.
 */
const CHARS_MAX = 4096;
const RULES_MAX = 100;
/** Characters of a note: it goes into an Event and the status of a CR. */
const NOTE_CHARS_MAX = 400;

/** Exclude rules for a volume, one a line, as in a `.kopiaignore`. */
export interface ExcludeSources {
  /** Rules of users. An invalid rule is ignored and named in the note. */
  readonly annotations?: string | undefined;
  /** The administrator has switched annotations off. */
  readonly isWithoutAnnotations?: boolean | undefined;
  readonly config?: string | undefined;
  readonly storageClass?: string | undefined;
  readonly settings?: string | undefined;
}

export interface Excludes {
  /** A later rule prevails. */
  readonly rules: readonly string[];
  /** Ignored annotation rules, with the reasons. */
  readonly problems: readonly string[];
}

export function excludeRulesIn(text: string): Excludes {
  if (text.length > CHARS_MAX) {
    return { rules: [], problems: [`the rules have more than ${CHARS_MAX} characters`] };
  }
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== '' && !line.startsWith('#'));
  if (lines.length > RULES_MAX) {
    return { rules: [], problems: [`there are more than ${RULES_MAX} rules`] };
  }
  const problems: string[] = [];
  const rules = lines.filter((line) => {
    try {
      parseIgnorePattern(line, '');
      return true;
    } catch (error) {
      if (!isCode(error, 'BAD_IGNORE_PATTERN')) throw error;
      problems.push(messageOf(error));
      return false;
    }
  });
  return { rules, problems };
}

/**
 * The rules for a volume from all places. The administrator's rules come last, so no annotation can
 * include their paths again. Throws `BAD_MOVER_CONFIG`.
 */
export function excludesOf(
  { annotations = '', isWithoutAnnotations = false, ...trusted }: ExcludeSources,
  { isBlock, logger }: { readonly isBlock: boolean; readonly logger: Logger },
): Excludes {
  const places = {
    'longshore.excludePaths': trusted.config,
    "longshore.excludePaths of the node-agent's storage class": trusted.storageClass,
    'longshore.excludePaths of the node-agent': trusted.settings,
  };
  const annotated = isWithoutAnnotations ? switchedOff(annotations) : excludeRulesIn(annotations);
  const rules = [...annotated.rules];
  for (const [place, text = ''] of Object.entries(places)) {
    const found = excludeRulesIn(text);
    const [problem] = found.problems;
    if (problem !== undefined) throw new CodedError('BAD_MOVER_CONFIG', `${place}: ${problem}`);
    rules.push(...found.rules);
  }
  if (annotated.problems.length > 0) {
    const text = 'annotated rules for excluded paths are ignored';
    logger.warn({ problems: annotated.problems }, text);
  }
  if (!isBlock) return { rules, problems: annotated.problems };
  // General rules do not address block volumes, so they cause no warning.
  if (annotations === '' && (trusted.config ?? '') === '') return { rules: [], problems: [] };
  const problem = 'a block volume has no paths to leave out';
  logger.warn({ rules }, problem);
  return { rules: [], problems: [problem] };
}

const switchedOff = (annotations: string): Excludes => ({
  rules: [],
  problems: annotations === '' ? [] : ['the administrator has switched annotations off'],
});

export const tagOfExcludes = ({ rules }: Excludes): Record<string, string> =>
  rules.length > 0 ? { [EXCLUDED_TAG]: JSON.stringify(rules) } : {};

/** A sentence for users; undefined without rules and problems. */
export function describeExcludes({ rules, problems }: Excludes): string | undefined {
  const quoted = rules.map((rule) => `"${printable(rule)}"`).join(', ');
  const parts = [
    ...(rules.length > 0 ? [`left out by rules: ${quoted}`] : []),
    ...(problems.length > 0 ? [`ignored rules: ${problems.map(printable).join('; ')}`] : []),
  ];
  if (parts.length === 0) return undefined;
  const text = parts.toReversed().join('; ');
  return text.length > NOTE_CHARS_MAX ? `${text.slice(0, NOTE_CHARS_MAX)}...` : text;
}
