import type { Answer } from './answers.ts';

/**
 * Answers with one letter for each: `y`, `n`, `e`. Lists of the files of pods have blanks between.
 */
export type PackedAnswer = Readonly<Record<string, string | readonly string[]>>;

export const pack = (answer: Answer): PackedAnswer => ({
  volumeSnapshots: letters(answer.volumeSnapshots),
  claimSnapshots: letters(answer.claimSnapshots),
  volumeCustom: letters(answer.volumeCustom),
  claimCustom: letters(answer.claimCustom),
  files: (answer.files ?? []).map(letters).join(' '),
  volumeActions: counted(answer.volumeActions),
  claimActions: counted(answer.claimActions),
  ...(answer.error !== undefined && { error: answer.error }),
});

const letters = (words: readonly string[] = []): string => words.map(([first]) => first).join('');

/** What follows itself stands once, with its count in front. */
function counted(words: readonly string[] = []): string[] {
  const packed: { count: number; word: string }[] = [];
  for (const word of words) {
    const last = packed.at(-1);
    if (last?.word === word) last.count++;
    else packed.push({ count: 1, word });
  }
  return packed.map(({ count, word }) => `${count}× ${word}`);
}
