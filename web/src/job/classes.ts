// The classes of one device's live memory in view, requested once the view comes to rest.
//
// Guarantees: the drawing stays until a finer one has arrived. Where a view has few enough events, classes come from them;
// otherwise they are known at boundaries alone, and the gaps are described in words.

import { useEffect, useMemo, useState } from 'preact/hooks';
import { useAsked } from '../api/ask';
import type { Classes, RankTimeline } from '../api/types';
import { around, classPoints, classSlots, corners, type ClassPoint } from '../draw/classes';
import type { Stretch } from '../draw/course';
import { question, type JobAddress } from '../route';
import { bytes, count, duration, rfc3339 } from '../words/numbers';

/** The view is requested once it has rested this long. */
const SETTLED_MS = 150;

/** See the module. */
export interface ClassCourse {
  names: string[];
  points: ClassPoint[];
  /** What is stacked: the slots' corners, or else the boundaries. */
  drawn: ClassPoint[];
  /** Whether it comes from events. */
  isFine: boolean;
  /** The slot at a time, or else the boundary nearest to a time, in words. */
  at: (time: number) => string;
  /** What the areas show and what they do not, given the number of boundaries in view. */
  words: (boundaries: number) => string;
}

const NONE: ClassPoint[] = [];

/** See the module. */
export function useClasses(of: { job: JobAddress; line: RankTimeline }, own: Record<string, string | null>, wants: boolean, view: Stretch, all: Stretch): ClassCourse {
  const wanted = around(view, all);
  const more: Record<string, string | null> = {
    ...own,
    ...(wanted === null ? {} : { since: rfc3339(wanted.from), until: rfc3339(wanted.to) }),
  };
  const path = wants ? question(of.job, 'classes', more) : null;
  const [asked, setAsked] = useState(path);
  useEffect(() => {
    const timer = setTimeout(() => { setAsked(path); }, SETTLED_MS);
    return () => { clearTimeout(timer); };
  }, [path]);
  const fine = useAsked<Classes>(asked);
  const [last, setLast] = useState<Classes | null>(null);
  useEffect(() => {
    if (fine.answer !== null) setLast(fine.answer);
  }, [fine.answer]);
  const answer = wants ? (fine.answer ?? last) : null;
  const points = useMemo(() => (answer === null ? NONE : classPoints(answer)), [answer]);
  const slots = useMemo(() => (answer === null ? [] : classSlots(answer)), [answer]);
  const drawn = useMemo(() => (slots.length > 0 ? corners(slots) : points), [slots, points]);
  const names = answer?.classes ?? [];
  const list = (of: number[]): string => {
    const parts = names.flatMap((name, index) => ((of[index] ?? 0) > 0 ? [`${name.replaceAll('_', ' ')} ${bytes(of[index])}`] : []));
    return parts.length === 0 ? 'nothing live' : parts.join(', ');
  };
  const at = (time: number): string => {
    const slot = slots.find((one) => time >= one.from && time < one.to);
    if (slot !== undefined) return `At its highest moment: ${list(slot.bytes)}.`;
    const near = points.reduce<ClassPoint | null>((best, point) => (best === null || Math.abs(point.time - time) < Math.abs(best.time - time) ? point : best), null);
    if (near === null) return '';
    const away = Math.abs(near.time - time);
    return `At the ${near.name}${away >= 1 ? `, ${duration(away)} ${near.time < time ? 'before' : 'later'}` : ''}: ${list(near.bytes)}.`;
  };
  const words = (boundaries: number): string => {
    if (fine.trouble !== null) return `Classes cannot be shown: ${fine.trouble}`;
    if (answer === null) return 'Loading the classes…';
    if (slots.length > 0) return 'Classes are those of the highest moment of each point, from single events.';
    if (points.length < 2) return 'Classes are known at the ends of steps and epochs alone, and fewer than two are stored here.';
    const left = answer.points_left_out > 0 ? ` ${count(answer.points_left_out)} more boundaries between them are not drawn; a closer look shows them.` : '';
    const until = answer.looked_until === null ? '' : ' Of the steps in view only the first are drawn: there are too many.';
    return `Classes are known at the ends of steps and epochs alone (${count(boundaries)} of them in view), with straight lines between: what comes and goes within a step is in the envelope and in no class.${left}${until}`;
  };
  return { names, points, drawn, isFine: slots.length > 0, at, words };
}
