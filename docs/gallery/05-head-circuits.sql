-- Circuits of heads
-- Faithfulness on addition when only some heads keep their output. Heads ranked by their effect
-- need far fewer heads than random ones.
select heads, avg(faithfulness) as faithfulness, circuit
from head_faithfulness
where subject = $subject and operator = 'add' and circuit in ('effect', 'logit_effect', 'random')
group by heads, circuit
order by heads, circuit
